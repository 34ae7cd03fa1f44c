"""Several runs beside each other: means with intervals, paired by seed."""

import dataclasses
import itertools
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from scipy import stats

from madao.report.chart import Chart, Panel, Series
from madao.report.run import Run

CONFIDENCE = 0.95

# What may differ between runs that are repetitions of one another, or runs of two methods on the same problem.
_FREE = {
    "seed",
    "out",
    "resume",
    "device",
    "tensorboard",
    "checkpoint_minutes",
    "data.root",
    "data.workers",
    "data.memory",
    "speed.kernels",
    "speed.graph",
    "speed.compile",
}
_METHOD = ("augment.", "outer.")


@dataclasses.dataclass(frozen=True)
class Interval:
    """A mean with its 95 % interval by Student's t; the half width is None for a single value."""

    mean: float
    half_width: float | None
    count: int


@dataclasses.dataclass(frozen=True)
class Group:
    """Runs that differ in their seed only.

    Attributes:
        label: The method, and the settings that tell it from others of the method.
        runs: The runs.
        errors: Their errors, in the order of the runs.
    """

    label: str
    runs: Sequence[Run]
    errors: Sequence[float]

    def by_seed(self) -> dict[Any, float]:
        """The error of each seed."""
        return {run.setting("seed", 0): error for run, error in zip(self.runs, self.errors, strict=True)}


@dataclasses.dataclass(frozen=True)
class Difference:
    """A group against the reference, by seeds both have.

    Attributes:
        mean: Mean of (error − reference's error) with its interval; None without a common seed.
        p_value: Of the paired t-test, two-sided; None with fewer than two common seeds or no spread.
    """

    mean: Interval | None
    p_value: float | None


@dataclasses.dataclass(frozen=True)
class Comparison:
    """Methods on one problem.

    Attributes:
        problem: What is the same in all of the runs.
        measure: `"test error"`, or `"validation error"` where a run has no test error yet.
        groups: Of runs; the first is the reference.
    """

    problem: str
    measure: str
    groups: Sequence[Group]

    def rows(self) -> list[tuple[Group, Interval, Difference | None]]:
        """Each group with its mean and its difference to the reference."""
        reference = self.groups[0].by_seed()
        return [
            (group, interval(group.errors), None if number == 0 else difference(group.by_seed(), reference))
            for number, group in enumerate(self.groups)
        ]


def compare(runs: Sequence[Run]) -> list[Comparison]:
    """Runs on the same problem beside each other; problems with a single run are left out."""
    problems: dict[str, list[Run]] = {}
    for run in runs:
        problems.setdefault(_key(run, of_method=False), []).append(run)
    return [_comparison(same, [*problems]) for same in problems.values() if len(same) > 1]


def interval(values: Sequence[float]) -> Interval:
    """Mean and t-interval: x̄ ± t₀.₉₇₅,ₙ₋₁ s / √n."""
    count, mean = len(values), float(np.mean(values))
    if count < 2:
        return Interval(mean, None, count)
    spread = float(np.std(values, ddof=1)) / math.sqrt(count)
    return Interval(mean, float(stats.t.ppf((1 + CONFIDENCE) / 2, count - 1)) * spread, count)


def difference(values: Mapping[Any, float], reference: Mapping[Any, float]) -> Difference:
    """Of the seeds both have."""
    seeds = [seed for seed in values if seed in reference]
    if not seeds:
        return Difference(None, None)
    differences = [values[seed] - reference[seed] for seed in seeds]
    deviation = float(np.std(differences, ddof=1)) if len(seeds) > 1 else 0.0
    if deviation < 1e-9:  # errors are parts of 1: what differs by less is the same number, rounded
        return Difference(interval(differences), None)
    t = float(np.mean(differences)) / (deviation / math.sqrt(len(seeds)))
    return Difference(interval(differences), float(2 * stats.t.sf(abs(t), len(seeds) - 1)))


def comparison_charts(comparison: Comparison, number: int) -> list[Chart]:
    """Validation curves by method, and the last errors joined by seed."""
    curves = []
    for style, group in enumerate(comparison.groups):
        epochs, mean, low, high = _mean_curve(group)
        curves.append(Series(group.label, epochs, mean, style, low, high))
    seeds = sorted({seed for group in comparison.groups for seed in group.by_seed()}, key=str)
    places = range(len(comparison.groups))
    paired = [
        Series(f"seed {seed}", list(places), [group.by_seed().get(seed) for group in comparison.groups], style)
        for style, seed in enumerate(seeds)
    ]
    charts = [
        Chart(
            f"validation-{number}",
            "Validation error by method",
            "The mean over seeds; the band is the 95 % interval of that mean by Student's t (none for a single seed). "
            "Bands that overlap do not mean that two methods are equal: the paired chart is the sharper look.",
            [
                Panel(
                    curves, y_range=(0.0, 1.1 * max((value or 0.0 for line in curves for value in line.y), default=1.0))
                )
            ],
            y_label="validation error",
            percent=True,
        )
    ]
    if len(comparison.groups) > 1:
        charts.append(
            Chart(
                f"paired-{number}",
                f"{comparison.measure.capitalize()}, seed by seed",
                "Each line is a seed, through the methods: the same images set aside, the same first weights. "
                "Where all lines fall from one method to the next, the next is better, whatever their spread.",
                [Panel(paired)],
                x_label="method",
                y_label=comparison.measure,
                percent=True,
                ticks=[group.label for group in comparison.groups],
            )
        )
    return charts


def _mean_curve(group: Group) -> tuple[list[float], list[float | None], list[float | None], list[float | None]]:
    by_epoch: dict[float, list[float]] = {}
    for run in group.runs:
        errors = run.metrics.get("validation_error", ())
        for epoch, error in zip(run.metrics["epoch"], errors, strict=False):
            if epoch is not None and error is not None:
                by_epoch.setdefault(epoch, []).append(error)
    epochs = sorted(by_epoch)
    found = [interval(by_epoch[epoch]) for epoch in epochs]
    # A band only where every run has a point: it would jump where one ends.
    widths = [each.half_width if each.count == len(group.runs) else None for each in found]
    # An error lies between 0 and 1, also where the interval of two seeds does not.
    low = [None if width is None else max(each.mean - width, 0.0) for each, width in zip(found, widths, strict=True)]
    high = [None if width is None else min(each.mean + width, 1.0) for each, width in zip(found, widths, strict=True)]
    return epochs, [each.mean for each in found], low, high


def _comparison(runs: Sequence[Run], problems: Sequence[str]) -> Comparison:
    tested = all(isinstance(run.result.get("test_error"), float | int) for run in runs)
    groups: dict[str, list[Run]] = {}
    for run in runs:
        groups.setdefault(_key(run, of_method=True), []).append(run)
    labels = _labels([same[0] for same in groups.values()])
    found = [
        Group(label, same, [_error(run, tested) for run in same])
        for label, same in zip(labels, groups.values(), strict=True)
    ]
    # What everything is measured against comes first, what learns last.
    found.sort(key=lambda group: (group.label != "standard", group.label != "uniform", group.label.startswith("madao")))
    first = runs[0]
    problem = ", ".join(str(part) for part in (_data(first), _model(first), f"{first.setting('epochs', '?')} epochs"))
    if len(problems) > 1:
        distinct = _differences([json.loads(key) for key in problems])[problems.index(_key(first, of_method=False))]
        problem = ", ".join([problem, *distinct])
    return Comparison(problem, "test error" if tested else "validation error", found)


def _error(run: Run, tested: bool) -> float:
    if tested:
        return float(run.result["test_error"])
    known = [error for error in run.metrics.get("validation_error", ()) if error is not None]
    return known[-1] if known else math.nan


def _data(run: Run) -> str:
    planted = run.setting("data.planted", "none")
    name = str(run.setting("data.name") or ("digits" if run.setting("data.root") is None else "images"))
    return name if planted == "none" else f"{name} ({planted} planted)"


def _model(run: Run) -> str:
    return str(run.setting("model.name") or "default model")


def _labels(runs: Sequence[Run]) -> list[str]:
    """The method, and what tells it from the others of the same method."""
    labels = [run.method for run in runs]
    for method in set(labels):
        same = [index for index, run in enumerate(runs) if run.method == method]
        if len(same) > 1:
            for index, distinct in zip(same, _differences([_flat(runs[i].config) for i in same]), strict=True):
                labels[index] = ", ".join([method, *distinct])
    return labels


def _differences(settings: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    """For each of several settings, those that are not the same in all and are not told anyway."""
    keys = list(dict.fromkeys(itertools.chain(*settings)))
    told = (*_FREE, "epochs", "data.name", "data.planted", "model.name")
    differing = [key for key in keys if key not in told and len({json.dumps(each.get(key)) for each in settings}) > 1]
    return [[f"{key} {each.get(key)}" for key in differing] for each in settings]


def _key(run: Run, of_method: bool) -> str:
    """What two runs share that are repetitions of one another, or that are only on the same problem."""
    kept = {key: value for key, value in _flat(run.config).items() if key not in _FREE}
    if not of_method:
        kept = {key: value for key, value in kept.items() if not key.startswith(_METHOD)}
    elif run.method != "madao":
        kept = {key: value for key, value in kept.items() if not key.startswith("outer.")}
    return json.dumps(kept, sort_keys=True, default=str)


def _flat(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in config.items():
        if isinstance(value, Mapping) and not prefix:
            flat |= _flat(value, f"{key}.")
        else:
            flat[prefix + str(key)] = value
    return flat
