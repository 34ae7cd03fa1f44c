"""The entries of the paper's tables and figures, their results so far, and the commands for missing ones.

Every script in this folder rebuilds one table or figure from `benchmarks/results/paper-*.json`:

    python benchmarks/paper/table1.py                              # the results, and the names of missing runs
    python benchmarks/paper/table1.py --commands                   # also the commands that train them
    python benchmarks/paper/table1.py --run --root data            # train the missing runs first

`--run` calls `madao compare`, so you may stop it at any time, for instance after nine minutes (`timeout -s INT 9m …`).
It then resumes.
"""

import argparse
import dataclasses
import json
import math
import shlex
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from madao.cli import main as madao
from madao.cli.recipes import paper_numbers, recipe_path
from madao.config.aliases import current_record
from madao.report.chart_model import Chart, Panel, Series, operation_style
from madao.report.compare import Interval, difference, in_percent, interval
from madao.report.figures import write_figures

ROOT = Path(__file__).parents[2]
VARIANTS = Path(__file__).parent / "variants.yaml"
SEEDS = 3
SHORT = 60
"""Epochs of runs that would take too long with the recipe's: figures 3 and 7, and runs that are not in the paper."""
WARMUP = 20.0
"""Epochs of warm-up, in all of the recipes."""
_SIGNAL = 128
"""The lowest exit code of commands that were interrupted."""


@dataclasses.dataclass(frozen=True)
class Entry:
    """The cells of one recipe that a table or figure needs.

    Attributes:
        recipe: The name of the recipe.
        methods: Methods of `madao compare`, including those of variants.yaml.
        epochs: The number of epochs, if not the recipe's. The warm-up is then proportionally shorter.
    """

    recipe: str
    methods: Sequence[str]
    epochs: int | None = None

    def only(self, *methods: str) -> "Entry":
        """Return the entry with only some of its methods."""
        return dataclasses.replace(self, methods=methods)

    @property
    def name(self) -> str:
        """The name of its record and of the folder of its runs."""
        return self.recipe if self.epochs is None else f"{self.recipe}-{self.epochs}"

    def path(self, results: Path) -> Path:
        """Return the path of its record."""
        return results / f"paper-{self.name}.json"

    def cells(self, results: Path) -> dict[str, dict[int, dict[str, Any]]]:
        """Return the finished cells by method and seed."""
        if not self.path(results).exists():
            return {}
        record = current_record(json.loads(self.path(results).read_text()))
        recipe = yaml.safe_load(recipe_path(self.recipe).read_text())
        wanted = {"epochs": self.epochs or recipe["epochs"], "batch_size": recipe["batch_size"]}
        for key, value in wanted.items():  # a rehearsal is no result
            if record["settings"].get(key) != value:
                raise SystemExit(f"{self.path(results)} has cells whose {key} is not {value}, as it should be")
        found: dict[str, dict[int, dict[str, Any]]] = {}
        for name, cell in record["cells"].items():
            method = name.rsplit(" ", 1)[0]
            if method in self.methods:
                found.setdefault(method, {})[cell["seed"]] = cell
        return found

    def missing(self, results: Path) -> dict[tuple[int, ...], list[str]]:
        """Return the missing cells: methods by their missing seeds."""
        cells = self.cells(results)
        found: dict[tuple[int, ...], list[str]] = {}
        for method in self.methods:
            if seeds := tuple(seed for seed in range(SEEDS) if seed not in cells.get(method, {})):
                found.setdefault(seeds, []).append(method)
        return found

    def told(self, method: str, cells: Mapping[str, Mapping[int, Mapping[str, Any]]]) -> str:
        """Return the test error of a method as text for a table."""
        found = error(cells.get(method, {}))
        return "–" if method not in self.methods else "missing" if found is None else percent(found)

    def arguments(self, methods: Sequence[str], seeds: Sequence[int], root: str) -> list[str]:
        """Return the command line of `madao compare` for some cells, without its output folders.

        Args:
            methods: The methods.
            seeds: The seeds.
            root: The folder of the data sets.
        """
        shorter = []
        if self.epochs is not None:
            recipe = yaml.safe_load(recipe_path(self.recipe).read_text())
            warmup = recipe["outer"]["warmup"] * self.epochs / recipe["epochs"]
            shorter = ["--epochs", str(self.epochs), "--outer.warmup", f"{warmup:g}"]
        return [
            *("compare", "--recipe", self.recipe, "--data.root", root, "--methods", ",".join(methods)),
            *("--variants", str(VARIANTS), "--seeds", ",".join(map(str, seeds)) + "," * (len(seeds) == 1)),
            *shorter,
        ]

    def commands(self, results: Path, root: str) -> list[list[str]]:
        """Return the commands that train only the missing cells, even if the runs of finished ones were deleted."""
        folders = ["--out", f"runs/paper/{self.name}", "--export", str(self.path(results))]
        return [[*self.arguments(methods, seeds, root), *folders] for seeds, methods in self.missing(results).items()]


SMALL = (
    *("base", "uniform", "trivialaugment", "autoaugment-cifar10", "randaugment"),
    *("learned", "deflated", "same-loss"),
)
FINE = (
    *("base", "uniform", "uniform-moderate", "uniform-strong", "geometric", "beyond", "pooled"),
    *("trivialaugment", "randaugment", "learned", "deflated-256", "same-loss-256", "pulled-256", "strength-256"),
)
TABLE1 = [
    *(Entry(f"cifar10-{model}", SMALL) for model in ("wrn-28-2", "wrn-40-2", "wrn-28-10")),
    Entry("cifar10-wrn-28-10", ("base", "same-loss"), 40),  # it fills a GPU by itself
    Entry("cifar10-resnet18", SMALL),
    Entry("cifar100-wrn-28-2", (*SMALL, "randaugment-mild")),
    Entry("svhn-wrn-28-2", [method for method in SMALL if not method.startswith("autoaugment")]),
]
SHORTER = Entry("cifar10-wrn-28-2", (), SHORT)
"""Entries with a shorter schedule. Their scripts name the methods they need."""
TABLE3 = [Entry(f"{data}-resnet18", FINE) for data in ("flowers102", "oxford-pets", "fgvc-aircraft", "stanford-cars")]


def main(about: str, entries: Sequence[Entry], rebuild: Callable[[Path, Path], str]) -> None:
    """Run the command line of a table or figure.

    Args:
        about: The script's docstring.
        entries: The entries that it needs.
        rebuild: Takes the folder of the results and the folder for figures; returns the text to print.
    """
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", action="store_true", help="train the cells that are missing")
    parser.add_argument("--commands", action="store_true", help="print the commands that train the missing cells")
    parser.add_argument("--root", default="data", help="the folder of the data sets")
    parser.add_argument("--results", type=Path, default=ROOT / "benchmarks/results", help="the folder of the records")
    parser.add_argument("--output", type=Path, default=ROOT / "docs/images", help="the folder of the figures")
    arguments, extra = parser.parse_known_args()  # what is left is for madao compare: --jobs 3, --speed.compile true
    if extra and not arguments.run:
        parser.error(f"unknown: {' '.join(extra)}; settings of madao compare go with --run")
    code = _run(entries, arguments.results, arguments.root, extra) if arguments.run else 0
    print(rebuild(arguments.results, arguments.output), end="\n\n")
    print("\n".join(what_is_missing(entries, arguments.results, arguments.root if arguments.commands else None)))
    sys.exit(code)


def _run(entries: Sequence[Entry], results: Path, root: str, extra: Sequence[str]) -> int:
    """Train the missing cells. A failure does not stop the others, a signal does."""
    code = 0
    for entry in entries:
        for command in entry.commands(results, root):
            ended = madao([*command, *extra])
            if ended >= _SIGNAL:
                return ended
            code = code or ended
    return code


def what_is_missing(entries: Sequence[Entry], results: Path, root: str | None = None) -> list[str]:
    """Return a line for each entry with missing cells and, if the folder of the data is known, the command."""
    found = []
    for entry in entries:
        for seeds, methods in entry.missing(results).items():
            found.append(f"missing of {entry.name}: {', '.join(methods)} (seed {', '.join(map(str, seeds))})")
        commands = [] if root is None else entry.commands(results, root)
        found += [f"  {shlex.join(['madao', *command])}".replace(f"{ROOT}/", "") for command in commands]
    return [*found, "--commands prints the commands that train them"] if found and root is None else found


def paper_table(
    entries: Sequence[Entry], results: Path, columns: Mapping[str, str], names: Mapping[str, str] | None = None
) -> str:
    """Return a table of test errors in percent, ours and the paper's: a row per entry, a column per method.

    Args:
        entries: The rows.
        results: The folder of the records.
        columns: Headings by method.
        names: The names of methods in the headers of recipes, where they differ.
    """
    rows = [["", *columns.values()], ["---"] * (1 + len(columns))]
    for entry in entries:
        # What the paper has of a whole schedule says nothing of a shorter one.
        cells, paper = entry.cells(results), paper_numbers(recipe_path(entry.recipe)) if entry.epochs is None else {}
        row = [entry.recipe if entry.epochs is None else f"{entry.recipe}, {entry.epochs} epochs"]
        for method in columns:
            theirs = paper.get((names or {}).get(method, method))
            there = entry.told(method, cells)
            row.append(there if theirs is None else f"{there} (paper: {theirs})")
        rows.append(row)
    return markdown(rows)


def cost_table(entries: Sequence[Entry], results: Path, columns: Mapping[str, str]) -> str:
    """Return a table of the median minutes over seeds, and of memory: a row per entry, a column per method.

    Memory is the largest of all seeds. The smallest is shown too if another version of the code took less.
    """
    rows = [["minutes, MiB", *columns.values()], ["---"] * (1 + len(columns))]
    for entry in entries:
        found = entry.cells(results)
        told = [entry.name]
        for method in columns:
            known = [cell for cell in found.get(method, {}).values() if cell.get("minutes") is not None]
            told.append(_cost(known) if known else "–")
        if any(each != "–" for each in told[1:]):
            rows.append(told)
    return markdown(rows) if len(rows) > 2 else ""


def _cost(cells: Sequence[Mapping[str, Any]]) -> str:
    minutes = statistics.median(cell["minutes"] for cell in cells)
    least, most = (pick(cell["memory_mib"] for cell in cells) for pick in (min, max))
    return f"{minutes:.1f}, {most:.0f}" if least > 0.9 * most else f"{minutes:.1f}, {least:.0f} to {most:.0f}"


def paired(
    entry: Entry, results: Path, names: Mapping[str, str], references: Sequence[str], measure: str = "test_error"
) -> str:
    """Return paired differences of errors in points, for methods with two or more seeds in common with a reference.

    Args:
        entry: The entry.
        results: The folder of the records.
        names: Titles of methods, in their order.
        references: The methods to compare with.
        measure: `test_error` or `validation_error`.
    """
    errors = {
        method: {seed: cell[measure] for seed, cell in cells.items() if cell.get(measure) is not None}
        for method, cells in entry.cells(results).items()
    }
    compared = [method for method in references if method in errors]
    head = [f"{entry.name}: {measure.replace('_', ' ')}, points ± 95 %", *(f"− {names[other]}" for other in compared)]
    rows = [head, ["---"] * len(head)]
    for method in (method for method in names if method in errors):
        found = [None if other == method else difference(errors[method], errors[other]).mean for other in compared]
        known = [None if each is None or each.half_width is None else each for each in found]
        if any(known):
            rows.append([names[method], *(in_percent(each, signed=True) for each in known)])
    return markdown(rows) if len(rows) > 2 else ""


def markdown(rows: Sequence[Sequence[str]]) -> str:
    """Return a table of these rows. The second row is the line under the heading."""
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def error(cells: Mapping[int, Mapping[str, Any]]) -> Interval | None:
    """Return the mean test error of some seeds."""
    known = [cell["test_error"] for cell in cells.values() if cell.get("test_error") is not None]
    return interval(known) if known else None


def percent(found: Interval) -> str:
    """Format an error with its interval, and with the number of seeds if it is not the paper's."""
    count = f"{found.count} of {SEEDS}" if found.count < SEEDS else str(found.count)
    return in_percent(found) + ("" if found.count == SEEDS else f" [{count} seeds]")


def draw(chart: Chart, folder: Path) -> str:
    """Write a chart, and return a line with its path."""
    return "wrote " + " and ".join(str(path) for path in write_figures({chart.key: chart}, folder))


def trajectory(
    cells: Mapping[int, Mapping[str, Any]], kind: str, stage: int, title: str, most: int | None = None
) -> Panel | None:
    """Return a panel of one kind of parameter over the training of the first seed.

    Args:
        cells: The cells of a learned method, by seed.
        kind: `selection`, `application` or `magnitude`.
        stage: The stage, counted from 0.
        title: The title of the panel.
        most: The number of operations to show, those selected most often at the end. By default all.
    """
    policy = cells[min(cells)].get("policy") if cells else None
    if policy is None or len(policy["epochs"]) < 2:
        return None
    last = policy["selection"][-1][stage]
    chosen = sorted(range(len(last)), key=lambda index: -last[index])[:most]
    shown = [index for index in chosen if any(values[stage][index] for values in policy[kind])]  # some have no strength
    series = [
        Series(
            policy["operations"][index],
            policy["epochs"],
            [values[stage][index] for values in policy[kind]],
            operation_style(index),
        )
        for index in sorted(shown)
    ]
    return Panel(series, title, None if kind == "selection" else (0.0, 1.0))


def policies(key: str, title: str, panels: Sequence[Panel | None], y_label: str, output: Path) -> str:
    """Draw a figure of the trajectories that exist."""
    known = [panel for panel in panels if panel is not None]
    if not known:
        return f"{key}: no run of it is there"
    chart = Chart(key, title, "", known, y_label=y_label, percent=True, shaded=(0.0, WARMUP, "warm-up"))
    return draw(chart, output)


def against(
    key: str, title: str, label: str, found: Mapping[float, Mapping[int, Mapping[str, Any]]], output: Path
) -> str:
    """Draw test error against a setting, with the standard deviation as in the paper.

    Args:
        key: Of the figure's file.
        title: Of the figure.
        label: Of the setting.
        found: Cells by setting and seed. Shown are the seeds that all settings have: others would make points that
            differ by their seeds.
        output: The folder it goes to.
    """
    tested = {x: {seed: cell for seed, cell in cells.items() if error({seed: cell})} for x, cells in found.items()}
    known = {x: cells for x, cells in tested.items() if cells}
    absent = ", ".join(f"{x:g}" for x in found if x not in known)
    seeds = sorted(set.intersection(*(set(cells) for cells in known.values()))) if known else []
    means = [error({seed: cells[seed] for seed in seeds}) for cells in known.values()]
    points = [each for each in means if each is not None]
    if not points:
        return f"{key}: {'no seed that all settings have' if known else 'no run of it'} is there"
    low, high = ([edge(each, sign) for each in points] for sign in (-1, 1))
    panel = Panel([Series("test error", [*range(len(points))], [each.mean for each in points], 0, low, high)])
    of = f"seed {seeds[0]}" if len(seeds) == 1 else f"mean ± standard deviation of {len(seeds)} seeds"
    ticks = [f"{x:g}" for x in known]
    chart = Chart(key, title, "", [panel], x_label=label, y_label=f"test error, {of}", percent=True, ticks=ticks)
    return draw(chart, output) + f", of seed {', '.join(map(str, seeds))}" + (f"; missing: {absent}" if absent else "")


def edge(found: Interval, sign: int) -> float | None:
    """Return the mean and one standard deviation; none for a single seed."""
    from scipy import stats

    if found.half_width is None:
        return None
    deviation = found.half_width / float(stats.t.ppf(0.975, found.count - 1)) * math.sqrt(found.count)
    return found.mean + sign * deviation
