"""The table of a comparison: mean error with interval, paired differences, time and memory of each method.

The folder of a comparison has a run directory METHOD/SEED for each method and seed. RandAugment's are
randaugment/MAGNITUDE/SEED, and search.json names the chosen magnitude.
"""

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from madao.config.aliases import current_method, method_folder
from madao.errors import ReportError
from madao.report.compare import Interval, difference, in_percent, interval
from madao.report.run import Run, read_run

REFERENCES = ("base", "uniform", "randaugment")
"""Methods that all others are compared with: base augmentation, the uniform policy and RandAugment."""
SEARCH = "search.json"
TUNED = "randaugment"


@dataclasses.dataclass(frozen=True)
class Row:
    """The row of a method."""

    method: str
    errors: Mapping[int, float]  # test error of each finished run, by seed
    missing: Sequence[int]  # the seeds of unfinished runs
    error: Interval | None  # the mean error with its interval; None without a finished run
    differences: Mapping[str, Interval | None]  # paired, to each of `REFERENCES` but itself; None without common seed
    minutes: float | None  # of training without evaluation, the mean over seeds
    memory: float | None  # the peak in MiB, the largest over seeds; None if it was not measured


@dataclasses.dataclass(frozen=True)
class Table:
    """A comparison of methods."""

    measure: str  # "test error", or "validation error" where the data has no test images
    rows: Sequence[Row]
    magnitude: float | None = None  # the chosen one of RandAugment, if any
    unlearned: Mapping[str, str] = dataclasses.field(default_factory=dict)  # why policies did not change

    @property
    def missing(self) -> int:
        """Number of unfinished runs."""
        return sum(len(row.missing) for row in self.rows)


def run_path(folder: Path, method: str, seed: int, magnitude: float | None = None) -> Path:
    """Return the directory of a run, for RandAugment that of a magnitude."""
    inner = method_folder(folder, method)
    return inner / str(seed) if magnitude is None else inner / f"{magnitude:g}" / str(seed)


def chosen_magnitude(folder: Path) -> float | None:
    """Return the chosen magnitude of RandAugment, if any."""
    try:
        found = json.loads((folder / SEARCH).read_text(encoding="utf-8")).get("magnitude")
    except FileNotFoundError:
        return None
    return None if found is None else float(found)


def read_runs(folder: Path, methods: Sequence[str] | None = None) -> dict[str, dict[int, Run]]:
    """Read the finished runs of these methods, by default all in the folder, by method and seed."""
    found = sorted({current_method(path.name) for path in folder.iterdir() if path.is_dir()}) if folder.is_dir() else []
    magnitude = chosen_magnitude(folder)
    runs: dict[str, dict[int, Run]] = {}
    for method in found if methods is None else methods:
        inner = method_folder(folder, method)
        if method == TUNED:
            if magnitude is None:
                continue
            inner = run_path(folder, method, 0, magnitude).parent
        seeds = [path for path in inner.iterdir() if _finished(path)] if inner.is_dir() else []
        for path in sorted(seeds, key=lambda path: int(path.name)):
            try:
                runs.setdefault(method, {})[int(path.name)] = read_run(path)
            except ReportError:  # an interrupted copy, say, is not finished
                continue
    return runs


def tabulate(
    runs: Mapping[str, Mapping[int, Run]], wanted: Mapping[str, Sequence[int]], magnitude: float | None = None
) -> Table:
    """Return the table of finished runs. The methods of the plan come first, with the seeds that it wants of each."""
    every = [run for seeds in runs.values() for run in seeds.values()]
    tested = any(run.result.get("test_error") is not None for run in every) or not every
    key = "test_error" if tested else "validation_error"
    errors = {
        method: {seed: float(run.result[key]) for seed, run in seeds.items() if run.result.get(key) is not None}
        for method, seeds in runs.items()
    }
    names = list(dict.fromkeys([*wanted, *runs]))
    rows = [_row(name, runs.get(name, {}), errors, wanted.get(name, ())) for name in names]
    unlearned = {
        f"{name} {seed}": run.unlearned
        for name in names
        for seed, run in runs.get(name, {}).items()
        if run.unlearned is not None
    }
    return Table(key.replace("_", " "), rows, magnitude, unlearned)


def _row(method: str, runs: Mapping[int, Run], errors: Mapping[str, Mapping[int, float]], wanted: Sequence[int]) -> Row:
    own = errors.get(method, {})
    differences = {
        other: None if other == method else difference(own, errors.get(other, {})).mean for other in REFERENCES
    }
    times = [minutes for run in runs.values() if (minutes := train_minutes(run)) is not None]
    memories = [memory for run in runs.values() if (memory := peak_memory(run)) is not None]
    return Row(
        method,
        own,
        [seed for seed in wanted if seed not in own],
        interval([*own.values()]) if own else None,
        differences,
        sum(times) / len(times) if times else None,
        max(memories, default=None),
    )


def train_minutes(run: Run) -> float | None:
    """Return the minutes of training without evaluation."""
    seconds = [value for value in run.timing.get("seconds", ()) if value is not None]
    return sum(seconds) / 60 if seconds else None


def peak_memory(run: Run) -> float | None:
    """Return the peak memory in MiB, of training and of learning the policy."""
    columns = [run.timing.get(name, ()) for name in ("memory_mib", "outer_memory_mib")]
    return max((value for column in columns for value in column if value is not None), default=None)


def to_dict(table: Table) -> dict[str, Any]:
    """Return the table for JSON. Errors and differences are fractions."""
    return {
        "measure": table.measure,
        "magnitude": table.magnitude,
        "unlearned": dict(table.unlearned),
        "rows": [
            {
                "method": row.method,
                "errors": {str(seed): error for seed, error in row.errors.items()},
                "missing": list(row.missing),
                "mean": None if row.error is None else row.error.mean,
                "half_width": None if row.error is None else row.error.half_width,
                **{f"to_{name}": _difference_to_dict(found) for name, found in row.differences.items()},
                "minutes": row.minutes,
                "memory_mib": row.memory,
            }
            for row in table.rows
        ],
    }


def headings(table: Table) -> list[str]:
    """Return the heading of each column."""
    differences = [f"− {name}" for name in _references(table)]
    return ["method", "seeds", f"{table.measure}, %", *differences, "minutes", "MiB"]


def lines(table: Table) -> list[list[str]]:
    """Return the texts of each row, errors in percent."""
    found, references = [], _references(table)
    for row in table.rows:
        differences = [row.differences[name] for name in references]
        finished, wanted = len(row.errors), len(row.errors) + len(row.missing)
        found.append(
            [
                row.method,
                f"{finished} of {wanted}" if row.missing else str(finished),
                in_percent(row.error),
                *(in_percent(each, signed=True) for each in differences),
                "–" if row.minutes is None else f"{row.minutes:.1f}",
                "–" if row.memory is None else f"{row.memory:.0f}",
            ]
        )
    return found


def note(table: Table) -> str:
    """Return the notes below the table."""
    notes = ["Mean ± 95 % interval by Student's t. Differences are paired by seed; negative is better."]
    if table.magnitude is not None:
        notes.append(f"RandAugment's magnitude: {table.magnitude:g}.")
    if table.measure != "test error":
        notes.append(
            "There is no test set: learned policies were tuned on these validation images, which favours them."
        )
    for reason in dict.fromkeys(table.unlearned.values()):
        which = ", ".join(name for name, each in table.unlearned.items() if each == reason)
        notes.append(f"The policy of {which} did not change, so no difference comes from learning: {reason}.")
    return " ".join(notes)


def markdown(table: Table) -> str:
    """Return the table as Markdown."""
    named = headings(table)
    rows = [named, ["---"] * len(named), *lines(table)]
    return "\n".join("| " + " | ".join(row) + " |" for row in rows) + f"\n\n{note(table)}\n"


def _references(table: Table) -> list[str]:
    methods = {row.method for row in table.rows}
    return [name for name in REFERENCES if name in methods]


def _difference_to_dict(found: Interval | None) -> dict[str, Any] | None:
    return None if found is None else {"mean": found.mean, "half_width": found.half_width, "seeds": found.count}


def _finished(path: Path) -> bool:
    return path.name.lstrip("-").isdigit() and (path / "result.json").is_file()
