"""Methods over seeds as one table: mean and interval, paired differences, time and memory; read from run directories.

A folder of cells holds METHOD/SEED, a run directory each; those of RandAugment, whose magnitude is searched for, lie in
randaugment/MAGNITUDE/SEED, and search.json says which magnitude was chosen.
"""

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from madao.config.aliases import current_method, method_folder
from madao.errors import ReportError
from madao.report.compare import Difference, Interval, difference, in_percent, interval
from madao.report.run import Run, read_run

REFERENCES = ("base", "uniform", "randaugment")
"""What a method has to beat: nothing beyond crops, every operation alike, one strength for all."""
SEARCH = "search.json"
TUNED = "randaugment"


@dataclasses.dataclass(frozen=True)
class Row:
    """A method.

    Attributes:
        method: Its name.
        errors: By seed, of the cells that are finished.
        missing: Seeds that are wanted and not there.
        error: Mean with its interval; None where no cell is finished.
        differences: To each of `REFERENCES`, by seeds both have; None to itself and where there is none in common.
        minutes: Of training, evaluation left out: the mean over seeds.
        memory: Peak in MiB, the largest over seeds; None where it was not measured.
    """

    method: str
    errors: Mapping[int, float]
    missing: Sequence[int]
    error: Interval | None
    differences: Mapping[str, Difference | None]
    minutes: float | None
    memory: float | None


@dataclasses.dataclass(frozen=True)
class Table:
    """What `madao compare` writes.

    Attributes:
        measure: `"test error"`, or `"validation error"` where the data has no test images.
        rows: The methods.
        magnitude: Of RandAugment, as it was chosen; None where it was not.
        unlearned: Why the policy of a cell that was to learn is as it started, by method and seed.
    """

    measure: str
    rows: Sequence[Row]
    magnitude: float | None = None
    unlearned: Mapping[str, str] = dataclasses.field(default_factory=dict)

    @property
    def missing(self) -> int:
        """How many cells that ought to be there are not."""
        return sum(len(row.missing) for row in self.rows)


def cell_path(folder: Path, method: str, seed: int, magnitude: float | None = None) -> Path:
    """The run directory of a cell; of RandAugment at a magnitude."""
    inner = method_folder(folder, method)
    return inner / str(seed) if magnitude is None else inner / f"{magnitude:g}" / str(seed)


def chosen_magnitude(folder: Path) -> float | None:
    """RandAugment's, where it is chosen."""
    try:
        found = json.loads((folder / SEARCH).read_text(encoding="utf-8")).get("magnitude")
    except FileNotFoundError:
        return None
    return None if found is None else float(found)


def read_cells(folder: Path, methods: Sequence[str] | None = None) -> dict[str, dict[int, Run]]:
    """The cells that are finished, by method and seed.

    Args:
        folder: Of the cells.
        methods: Which. By default all that are there.
    """
    there = sorted(current_method(path.name) for path in folder.iterdir() if path.is_dir()) if folder.is_dir() else []
    magnitude = chosen_magnitude(folder)
    cells: dict[str, dict[int, Run]] = {}
    for method in there if methods is None else methods:
        inner = method_folder(folder, method)
        if method == TUNED:
            if magnitude is None:
                continue
            inner = cell_path(folder, method, 0, magnitude).parent
        seeds = [path for path in inner.iterdir() if _finished(path)] if inner.is_dir() else []
        for path in sorted(seeds, key=lambda path: int(path.name)):
            try:
                cells.setdefault(method, {})[int(path.name)] = read_run(path)
            except ReportError:  # of an interrupted copy, say: as if it were not there
                continue
    return cells


def tabulate(
    cells: Mapping[str, Mapping[int, Run]], wanted: Mapping[str, Sequence[int]], magnitude: float | None = None
) -> Table:
    """The table of some cells.

    Args:
        cells: Those that are finished.
        wanted: The seeds of each method that ought to be there; its order comes first.
        magnitude: Of RandAugment.
    """
    runs = [run for seeds in cells.values() for run in seeds.values()]
    tested = any(run.result.get("test_error") is not None for run in runs) or not runs
    key = "test_error" if tested else "validation_error"
    errors = {
        method: {seed: float(run.result[key]) for seed, run in seeds.items() if run.result.get(key) is not None}
        for method, seeds in cells.items()
    }
    names = list(dict.fromkeys([*wanted, *cells]))
    rows = [_row(name, cells.get(name, {}), errors, wanted.get(name, ())) for name in names]
    unlearned = {
        f"{name} {seed}": run.unlearned
        for name in names
        for seed, run in cells.get(name, {}).items()
        if run.unlearned is not None
    }
    return Table(key.replace("_", " "), rows, magnitude, unlearned)


def _row(method: str, runs: Mapping[int, Run], errors: Mapping[str, Mapping[int, float]], wanted: Sequence[int]) -> Row:
    own = errors.get(method, {})
    differences = {
        other: None if other == method else _known(difference(own, errors.get(other, {}))) for other in REFERENCES
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
    """Of training, evaluation left out."""
    seconds = [value for value in run.timing.get("seconds", ()) if value is not None]
    return sum(seconds) / 60 if seconds else None


def peak_memory(run: Run) -> float | None:
    """In MiB, of training and of learning the policy."""
    columns = [run.timing.get(name, ()) for name in ("memory_mib", "outer_memory_mib")]
    return max((value for column in columns for value in column if value is not None), default=None)


def plain(table: Table) -> dict[str, Any]:
    """For JSON; errors and differences are parts of 1."""
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
                **{f"to_{name}": _plain_difference(found) for name, found in row.differences.items()},
                "minutes": row.minutes,
                "memory_mib": row.memory,
            }
            for row in table.rows
        ],
    }


def headings(table: Table) -> list[str]:
    """Of the columns."""
    differences = [f"− {name}" for name in _references(table)]
    return ["method", "seeds", f"{table.measure}, %", *differences, "minutes", "MiB"]


def lines(table: Table) -> list[list[str]]:
    """The rows as text, in percent."""
    found, references = [], _references(table)
    for row in table.rows:
        differences = [row.differences[name] for name in references]
        there, wanted = len(row.errors), len(row.errors) + len(row.missing)
        found.append(
            [
                row.method,
                f"{there} of {wanted}" if row.missing else str(there),
                in_percent(row.error),
                *(in_percent(None if d is None else d.mean, signed=True) for d in differences),
                "–" if row.minutes is None else f"{row.minutes:.1f}",
                "–" if row.memory is None else f"{row.memory:.0f}",
            ]
        )
    return found


def note(table: Table) -> str:
    """How to read it."""
    tuned = "" if table.magnitude is None else f" RandAugment's magnitude: {table.magnitude:g}."
    favoured = ""
    if table.measure != "test error":
        favoured = " There are no test images: a policy that learns has been chosen by these, which favours it."
    unlearned = ""
    for reason in dict.fromkeys(table.unlearned.values()):
        which = ", ".join(name for name, each in table.unlearned.items() if each == reason)
        unlearned += f" Of {which} the policy is as it started, and no difference comes of learning: {reason}."
    read = "Mean ± 95 % interval by Student's t; differences are paired by seed, below zero is better."
    return f"{read}{tuned}{favoured}{unlearned}"


def markdown(table: Table) -> str:
    """The table for documents."""
    named = headings(table)
    rows = [named, ["---"] * len(named), *lines(table)]
    return "\n".join("| " + " | ".join(row) + " |" for row in rows) + f"\n\n{note(table)}\n"


def _references(table: Table) -> list[str]:
    """Those that are in the table."""
    methods = {row.method for row in table.rows}
    return [name for name in REFERENCES if name in methods]


def _known(found: Difference) -> Difference | None:
    return None if found.mean is None else found


def _plain_difference(found: Difference | None) -> dict[str, Any] | None:
    if found is None or found.mean is None:
        return None
    return {"mean": found.mean.mean, "half_width": found.mean.half_width, "seeds": found.mean.count}


def _finished(path: Path) -> bool:
    return path.name.lstrip("-").isdigit() and (path / "result.json").is_file()
