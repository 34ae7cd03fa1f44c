"""Reading of run directories, also of other versions, interrupted runs and runs in progress."""

import collections
import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from madao.config.aliases import current_config
from madao.config.outer_config import warmup_epochs
from madao.config.plain_yaml import read_yaml_file
from madao.config.train_config import SETTINGS
from madao.config.typed import checked
from madao.errors import ReportError, UserError
from madao.policy import PolicySpec
from madao.report.run_files import (
    Table,
    numbers_of,
    read_columns,
    read_fields,
    read_policy,
    read_samples,
    read_trajectory,
)
from madao.text import alternatives, printable

_SPLIT = {"classes": list[str], "mean": list[float], "std": list[float], "validation": list[int] | None}
_RESULT = {
    **dict.fromkeys(("test_error", "validation_error", "test_loss"), float | None),
    **{"epoch": float, "test_metrics": dict[str, float], "policy": dict[str, float], "error": str},
}
"""The fields of JSON files that the report reads, with their types."""


@dataclasses.dataclass(frozen=True, eq=False)
class Trajectory:
    """The course of a learned policy.

    Attributes:
        operations: The names of the operations.
        epochs: The epoch of each entry.
        values: `selection`, `application` and `magnitude` (μ in [0, 1]), each `[times, stages, operations]`.
    """

    operations: tuple[str, ...]
    epochs: list[float]
    values: Mapping[str, np.ndarray]


@dataclasses.dataclass(frozen=True, eq=False)
class Run:
    """The contents of a run directory.

    Attributes:
        path: The directory.
        config: All settings, nested as in config.yaml.
        metrics: One row for each epoch.
        timing: Seconds and memory, one row for each epoch.
        outer: One row for each outer step.
        statuses: Number of outer steps by the final state of their linear system.
        trajectory: The course of the policy, if it learns.
        policy: The latest policy, if the method has one.
        result: The result; empty before the end of the run.
        environment: Versions, device and model.
        data_key: Identifies its images: classes, mean, deviation and number of validation images.
        samples: A few training images, uint8 `[n, C, H, W]`, if it stored any.
        labels: The class of each sample.
        missing: Messages about files that could not be read.
    """

    path: Path
    config: Mapping[str, Any]
    metrics: Table
    timing: Table
    outer: Table
    statuses: Mapping[str, int]
    trajectory: Trajectory | None
    policy: PolicySpec | None
    result: Mapping[str, Any]
    environment: Mapping[str, Any]
    data_key: str
    samples: np.ndarray | None
    labels: np.ndarray | None
    missing: Sequence[str]

    @property
    def name(self) -> str:
        """Its name in headings: the last two parts of the path."""
        return "/".join(self.path.resolve().parts[-2:])

    @property
    def method(self) -> str:
        """Its method of augmentation; of a policy file the name."""
        return Path(str(self.setting("augment.method", "unknown"))).stem

    @property
    def error_name(self) -> str:
        """The name of the task's error."""
        names = {"segmentation": "mIoU error", "moco": "k-NN error"}
        return names.get(str(self.setting("task.name")), "error")

    @property
    def epochs(self) -> int:
        """Number of finished epochs."""
        return int(self.metrics["epoch"][-1] or 0)

    @property
    def warmup(self) -> float:
        """Number of epochs before the policy begins to learn."""
        return float(warmup_epochs(self.setting("outer.warmup"), self.setting("epochs", 0)))

    @property
    def learns(self) -> bool:
        """Whether its method learns a policy."""
        return bool(self.setting("augment.method") == "learned")

    @property
    def unlearned(self) -> str | None:
        """The reason why the policy of a learning method did not change, and the remedy; None where it changed."""
        if not self.learns or not self.result or last(self.metrics.get("outer_updates", ())) != 0:
            return None
        skipped = int(last(self.metrics.get("outer_skipped", ())) or 0)
        if skipped:
            return f"all {skipped} outer steps were skipped as unreliable: try a smaller `outer.scale`"
        if self.setting("outer.budget") and self.setting("outer.every") is None:
            return "no outer step was taken: raise `outer.budget` or `epochs`"
        lower = [f"`{name}`" for name in ("outer.every", "batch_size") if self.setting(name, 2) != 1]
        return f"no outer step was taken: raise `epochs`{', or lower ' + alternatives(lower) if lower else ''}"

    def setting(self, name: str, default: Any = None) -> Any:
        """Return a setting by its dotted name."""
        value: Any = self.config
        for part in name.split("."):
            if not isinstance(value, Mapping) or part not in value:
                return default
            value = value[part]
        return value


def dotted(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings by their dotted names."""
    found: dict[str, Any] = {}
    for key, value in config.items():
        nested = isinstance(value, Mapping)
        found |= {f"{key}.{name}": each for name, each in value.items()} if nested else {key: value}
    return found


def last(values: Sequence[float | None]) -> float | None:
    """Return the last known value."""
    return next((value for value in reversed(values) if value is not None), None)


def find_runs(paths: Sequence[Path]) -> list[Path]:
    """Find the run directories among and below `paths`, each once.

    Raises:
        ReportError: A path does not exist, or holds no run.
    """
    found: dict[Path, Path] = {}
    for path in paths:
        if not path.exists():
            raise ReportError(f"there is no folder {path}; give a run directory")
        if not path.is_dir():
            raise ReportError(f"{path} is a file; give its run directory")
        runs = [path] if (path / "config.yaml").exists() else sorted(p.parent for p in path.rglob("config.yaml"))
        if not runs:
            raise ReportError(f"{path} is no run directory: neither it nor a folder below has a config.yaml")
        found |= {run.resolve(): run for run in runs}
    return list(found.values())


def read_run(path: Path) -> Run:
    """Read a run directory.

    Raises:
        ReportError: There is nothing to show.
    """
    missing: list[str] = []
    config = _settings(path, missing)
    metrics = numbers_of(read_columns(path / "metrics.csv", missing))
    if not metrics.get("epoch"):
        raise ReportError(f"{path} has not finished its first epoch: metrics.csv has no rows")
    split, outer = read_fields(path / "split.json", _SPLIT, missing), read_columns(path / "outer.csv", missing)
    samples, labels = read_samples(path / "samples.npz", missing)
    policy = read_policy(path / "policy.json", missing)
    if policy is not None and samples is not None and not _fits(policy, samples):
        missing.append(f"samples.npz ({samples.shape[1]} channels, and the policy fills {policy.fill})")
        samples = None
    run = Run(
        path=path,
        config=config,
        metrics=metrics,
        timing=numbers_of(read_columns(path / "timing.csv", missing)),
        outer=numbers_of(outer),
        statuses=collections.Counter(printable(status, 40) for status in outer.get("status", ())),
        trajectory=_trajectory(path / "trajectory.jsonl", missing),
        policy=policy,
        result=read_fields(path / "result.json", _RESULT, missing),
        environment=read_fields(path / "environment.json", {}, missing),
        data_key=json.dumps(
            [split.get(name) for name in ("classes", "mean", "std")] + [len(split.get("validation") or ())]
        ),
        samples=samples,
        labels=labels,
        missing=missing,
    )
    told = {message.partition(".")[0] for message in missing}
    if not run.timing and "timing" not in told:
        missing.append("timing.csv, so there are no charts of time and memory")
    if run.learns and run.policy is None and not (path / "policy.json").exists():
        missing.append("policy.json, so there is no table of the policy and no gallery")
    if run.learns and run.trajectory is None and "trajectory" not in told:
        missing.append("trajectory.jsonl, so there are no curves of the policy")
    if run.learns and not run.outer and "outer" not in told and any(run.metrics.get("outer_updates", ())):
        missing.append("outer.csv, so there are no charts of the hypergradient's health")
    if run.policy is not None and run.samples is None and "samples" not in told:
        missing.append("samples.npz, so there is no gallery of training images")
    return run


def _settings(path: Path, missing: list[str]) -> dict[str, Any]:
    file = path / "config.yaml"
    try:
        settings = read_yaml_file(file) if file.is_file() else None
    except (OSError, UserError):
        settings = None
    if not isinstance(settings, dict):
        raise ReportError(f"{file} is damaged; restore it to see this run")
    known, problems = checked(current_config(settings), SETTINGS)
    missing += [f"config.yaml ({problem.replace('`', '')})" for problem in problems]
    return known


def _trajectory(path: Path, missing: list[str]) -> Trajectory | None:
    found = read_trajectory(path, missing)
    if found is None:
        return None
    operations, epochs, stacked = found
    names = ("selection", "application", "magnitude")
    return Trajectory(operations, epochs, {name: stacked[:, index] for index, name in enumerate(names)})


def _fits(policy: PolicySpec, samples: np.ndarray) -> bool:
    """Return whether the policy can augment the samples."""
    return not isinstance(policy.fill, tuple) or len(policy.fill) == samples.shape[1]
