"""Comparison of runs: means with intervals, and differences paired by seed."""

import dataclasses
import itertools
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats

from madao.config.train_config import free_settings
from madao.report.chart_model import Chart, Panel, Series
from madao.report.run import Run, dotted

CONFIDENCE = 0.95

# Settings that do not affect a result: runs that differ only in these are repetitions.
# Each device has batch statistics of its own, so their number is no repetition.
_IRRELEVANT = {"seed", *free_settings()} - {"devices", "num_nodes"}
_METHOD = ("augment.", "outer.")


@dataclasses.dataclass(frozen=True)
class Interval:
    """A mean with the half width of its 95 % interval by Student's t, which is None for a single value."""

    mean: float
    half_width: float | None
    count: int


@dataclasses.dataclass(frozen=True)
class Group:
    """Runs that differ in their seed only.

    Attributes:
        label: The method, with the settings that differ from other groups of the method.
        runs: The runs.
        errors: The error of each run.
    """

    label: str
    runs: Sequence[Run]
    errors: Sequence[float]

    def by_seed(self) -> dict[Any, float]:
        """Return the error of each seed, the mean where a seed ran more than once."""
        found: dict[Any, list[float]] = {}
        for run, error in zip(self.runs, self.errors, strict=True):
            found.setdefault(run.setting("seed", 0), []).append(error)
        return {seed: float(np.mean(errors)) for seed, errors in found.items()}


@dataclasses.dataclass(frozen=True)
class Difference:
    """The difference between two methods, over their common seeds.

    Attributes:
        mean: The mean of (error − reference's error) with its interval; None without a common seed.
        p_value: The p-value of the two-sided paired t-test; None with fewer than two common seeds or no spread.
    """

    mean: Interval | None
    p_value: float | None


@dataclasses.dataclass(frozen=True)
class Comparison:
    """Methods on one problem.

    Attributes:
        problem: The data, model and schedule of all runs.
        measure: `"test error"`, or `"validation error at epoch …"` where no run has a test error.
        groups: The groups of runs; the first is the reference.
        left_out: Runs without this error yet.
    """

    problem: str
    measure: str
    groups: Sequence[Group]
    left_out: Sequence[Run] = ()

    def rows(self) -> list[tuple[Group, Interval, Difference | None]]:
        """Return each group with its mean error and its difference to the reference."""
        reference = self.groups[0].by_seed()
        return [
            (
                group,
                interval([*group.by_seed().values()]),
                None if number == 0 else difference(group.by_seed(), reference),
            )
            for number, group in enumerate(self.groups)
        ]


def compare(runs: Sequence[Run]) -> list[Comparison]:
    """Compare runs on the same problem. A problem with a single run is left out."""
    problems: dict[str, list[Run]] = {}
    for run in runs:
        problems.setdefault(_key(run, of_method=False), []).append(run)
    found = [_comparison(same, [*problems]) for same in problems.values() if len(same) > 1]
    return [comparison for comparison in found if comparison.groups]


def interval(values: Sequence[float]) -> Interval:
    """Return the mean and its t-interval: x̄ ± t₀.₉₇₅,ₙ₋₁ s / √n."""
    count, mean = len(values), float(np.mean(values))
    if count < 2:
        return Interval(mean, None, count)
    spread = float(np.std(values, ddof=1)) / math.sqrt(count)
    return Interval(mean, float(stats.t.ppf((1 + CONFIDENCE) / 2, count - 1)) * spread, count)


def difference(values: Mapping[Any, float], reference: Mapping[Any, float]) -> Difference:
    """Return the paired difference over common seeds.

    Args:
        values: The error of each seed.
        reference: The errors of the reference.
    """
    seeds = [seed for seed in values if seed in reference]
    if not seeds:
        return Difference(None, None)
    differences = [values[seed] - reference[seed] for seed in seeds]
    deviation = float(np.std(differences, ddof=1)) if len(seeds) > 1 else 0.0
    if deviation < 1e-9:  # of errors between 0 and 1: a smaller one is rounding
        return Difference(interval(differences), None)
    t = float(np.mean(differences)) / (deviation / math.sqrt(len(seeds)))
    return Difference(interval(differences), float(2 * stats.t.sf(abs(t), len(seeds) - 1)))


def in_percent(found: Interval | None, signed: bool = False) -> str:
    """Format a mean with its interval, of fractions, in percent; a dash if there is none."""
    if found is None:
        return "–"
    mean = f"{100 * found.mean:{'+' if signed else ''}.2f}".replace("-", "−")
    return mean if found.half_width is None else f"{mean} ± {100 * found.half_width:.2f}"


def comparison_charts(comparison: Comparison, number: int) -> list[Chart]:
    """Return charts of validation error by method and of final errors by seed."""
    curves = []
    for style, group in enumerate(comparison.groups):
        epochs, mean, low, high = _mean_curve(group)
        curves.append(Series(group.label, epochs, mean, style, low, high))
    highest = max((value or 0.0 for line in curves for value in line.y), default=0.0) or 1.0
    seeds = sorted({seed for group in comparison.groups for seed in group.by_seed()}, key=str)
    positions = range(len(comparison.groups))
    paired = [
        Series(f"seed {seed}", list(positions), [group.by_seed().get(seed) for group in comparison.groups], style)
        for style, seed in enumerate(seeds)
    ]
    charts = [
        Chart(
            f"validation-{number}",
            "Validation error by method",
            "Mean over seeds, with the 95 % interval of the mean by Student's t as a band (none for a single seed). "
            "Bands may leave the frame. Overlapping bands do not mean that two methods are equal: the paired chart "
            "is more sensitive.",
            [Panel(curves, y_range=(0.0, 1.1 * highest))],
            y_label="validation error",
            percent=True,
        )
    ]
    if len(comparison.groups) > 1:
        charts.append(
            Chart(
                f"paired-{number}",
                f"{comparison.measure.capitalize()}, seed by seed",
                "Each line is one seed: the same validation images and initial weights under each method. Lines that "
                f"all fall from one method to the next favour the next, even if they lie far apart. "
                f"{_by_chance(len(seeds))}",
                [Panel(paired)],
                x_label="method",
                y_label=comparison.measure,
                percent=True,
                ticks=[group.label for group in comparison.groups],
            )
        )
    return charts


def _by_chance(seeds: int) -> str:
    if seeds == 1:
        return "One seed is weak evidence."
    return f"With {seeds} seeds this happens by chance once in {2**seeds}."


def _mean_curve(group: Group) -> tuple[list[float], list[float | None], list[float | None], list[float | None]]:
    curves = [_evaluations(run) for run in group.runs]
    # Only epochs that every run has: the mean would jump where one run ends.
    epochs = sorted(set.intersection(*(set(curve) for curve in curves)))
    each_seed = (dataclasses.replace(group, errors=[curve[epoch] for curve in curves]).by_seed() for epoch in epochs)
    found = [interval([*errors.values()]) for errors in each_seed]
    widths = [each.half_width for each in found]
    # The interval of two seeds may leave [0, 1]; errors do not.
    low = [None if width is None else max(each.mean - width, 0.0) for each, width in zip(found, widths, strict=True)]
    high = [None if width is None else min(each.mean + width, 1.0) for each, width in zip(found, widths, strict=True)]
    return epochs, [each.mean for each in found], low, high


def _comparison(runs: Sequence[Run], problems: Sequence[str]) -> Comparison:
    tested = any(_test_error(run) is not None for run in runs)
    epoch = 0.0 if tested else _last_common_evaluation(runs)
    errors = {id(run): _test_error(run) if tested else _evaluations(run).get(epoch) for run in runs}
    groups: dict[str, list[Run]] = {}
    for run in runs:
        if errors[id(run)] is not None:
            groups.setdefault(_key(run, of_method=True), []).append(run)
    # The reference comes first, the learned policy last.
    ordered = sorted(groups.values(), key=lambda same: _rank(same[0].method))
    found = [
        Group(label, same, [error for run in same if (error := errors[id(run)]) is not None])
        for label, same in zip(_labels([same[0] for same in ordered]), ordered, strict=True)
    ]
    first = runs[0]
    problem = ", ".join(str(part) for part in (_data(first), _model(first), f"{first.setting('epochs', '?')} epochs"))
    if len(problems) > 1:
        distinct = _differences([json.loads(key) for key in problems])[problems.index(_key(first, of_method=False))]
        problem = ", ".join([problem, *distinct])
    measure = "test error" if tested else f"validation error at epoch {epoch:g}"
    return Comparison(problem, measure, found, [run for run in runs if errors[id(run)] is None])


def _rank(method: str) -> int:
    return {"base": 0, "uniform": 1, "learned": 3}.get(method, 2)


def _test_error(run: Run) -> float | None:
    error = run.result.get("test_error")
    return float(error) if isinstance(error, float | int) and math.isfinite(error) else None


def _evaluations(run: Run) -> dict[float, float]:
    """Return the validation error by epoch, where it was measured."""
    pairs = zip(run.metrics["epoch"], run.metrics.get("validation_error", ()), strict=False)
    return {epoch: error for epoch, error in pairs if epoch is not None and error is not None}


def _last_common_evaluation(runs: Sequence[Run]) -> float:
    measured = [set(_evaluations(run)) for run in runs if _evaluations(run)]
    return max(set.intersection(*measured), default=0.0) if measured else 0.0


def _data(run: Run) -> str:
    shift = run.setting("data.shift", "none")
    root = run.setting("data.root")
    name = str(run.setting("data.name") or ("digits" if root is None else Path(str(root)).name or root))
    return name if shift == "none" else f"{name} with shift {shift}"


def _model(run: Run) -> str:
    return str(run.setting("model.name") or run.environment.get("model") or "default model")


def _labels(runs: Sequence[Run]) -> list[str]:
    """Label each run by its method, and by settings where several have the same method."""
    labels = [run.method for run in runs]
    for method in set(labels):
        same = [index for index, run in enumerate(runs) if run.method == method]
        if len(same) > 1:
            settings = [json.loads(_key(runs[i], of_method=True)) for i in same]
            for index, distinct in zip(same, _differences(settings), strict=True):
                labels[index] = ", ".join([method, *distinct])
    return labels


def _differences(settings: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    """Return the settings in which several runs differ, except settings that the page shows anyway."""
    keys = list(dict.fromkeys(itertools.chain(*settings)))
    shown = (*_IRRELEVANT, "epochs", "data.name", "data.shift", "model.name", "data_key")
    differing = [key for key in keys if key not in shown and len({json.dumps(each.get(key)) for each in settings}) > 1]
    return [[f"{key} {each.get(key)}" for key in differing] for each in settings]


def _key(run: Run, of_method: bool) -> str:
    """Return a key that runs on the same problem share; or, `of_method`, only repetitions of one method."""
    # A version without a setting did what None does now.
    given = {key: value for key, value in dotted(run.config).items() if key not in _IRRELEVANT and value is not None}
    kept = given | {"data_key": run.data_key}
    if not of_method:
        kept = {key: value for key, value in kept.items() if not key.startswith(_METHOD)}
    elif run.method != "learned":
        kept = {key: value for key, value in kept.items() if not key.startswith("outer.")}
    return json.dumps(kept, sort_keys=True, default=str)
