"""Reading of run directories, also of other versions, interrupted runs and runs in progress."""

import collections
import csv
import dataclasses
import json
import math
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from madao.config.aliases import current_config
from madao.config.outer_config import warmup_epochs
from madao.errors import PolicyFileError, ReportError
from madao.policy import PolicySpec

Table = dict[str, list[float | None]]
"""The columns of a CSV file; None where a cell holds no finite number."""


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
        return "no outer step was taken: raise `epochs`, or lower `outer.every` or `batch_size`"

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
    config = _settings(path)
    metrics = _numbers(_rows(path / "metrics.csv"))
    if not metrics.get("epoch"):
        raise ReportError(f"{path} has not finished its first epoch: metrics.csv has no rows")
    split, outer = _json(path / "split.json"), _rows(path / "outer.csv")
    samples, labels = _samples(path / "samples.npz")
    run = Run(
        path=path,
        config=config,
        metrics=metrics,
        timing=_numbers(_rows(path / "timing.csv")),
        outer=_numbers(outer),
        statuses=collections.Counter(outer.get("status", ())),
        trajectory=_trajectory(path / "trajectory.jsonl"),
        policy=_policy(path / "policy.json", missing),
        result=_json(path / "result.json"),
        environment=_json(path / "environment.json"),
        data_key=json.dumps(
            [split.get(name) for name in ("classes", "mean", "std")] + [len(split.get("validation") or ())]
        ),
        samples=samples,
        labels=labels,
        missing=missing,
    )
    if not run.timing:
        missing.append("timing.csv, so there are no charts of time and memory")
    if run.learns and run.policy is None and not missing:
        missing.append("policy.json, so there is no table of the policy and no gallery")
    if run.learns and run.trajectory is None:
        missing.append("trajectory.jsonl, so there are no curves of the policy")
    if run.learns and not run.outer and any(run.metrics.get("outer_updates", ())):
        missing.append("outer.csv, so there are no charts of the hypergradient's health")
    if run.policy is not None and run.samples is None:
        missing.append("samples.npz, so there is no gallery of training images")
    return run


def _settings(path: Path) -> dict[str, Any]:
    try:
        settings = yaml.safe_load((path / "config.yaml").read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError):
        settings = None
    if not isinstance(settings, dict):
        raise ReportError(f"{path / 'config.yaml'} is damaged; restore it to see this run")
    return current_config(settings)


def _rows(path: Path) -> dict[str, list[str]]:
    """Read the columns of a CSV file, without incomplete lines."""
    try:
        text = path.read_text(encoding="utf-8")
    except (FileNotFoundError, UnicodeDecodeError):
        return {}
    rows = list(csv.reader(line for line in text.splitlines(keepends=True) if line.endswith("\n")))
    whole = [row for row in rows[1:] if len(row) == len(rows[0])]
    return {name: [row[column] for row in whole] for column, name in enumerate(rows[0])} if whole else {}


def _numbers(rows: Mapping[str, Sequence[str]]) -> Table:
    return {name: [_number(text) for text in column] for name, column in rows.items()}


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def _json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def _trajectory(path: Path) -> Trajectory | None:
    """Read a trajectory up to the first incomplete line."""
    lines: list[dict[str, Any]] = []
    try:
        for text in path.read_text(encoding="utf-8").splitlines():
            lines += [json.loads(text)]
    except (FileNotFoundError, ValueError):
        pass
    operations: tuple[str, ...] = ()
    epochs, values = [], []
    try:
        for line in lines:
            operations = tuple(line.get("operations", operations))
            if "selection" in line:
                epochs.append(float(line["epoch"]))
                values.append([line[name] for name in ("selection", "application", "magnitude")])
        stacked = np.asarray(values, dtype=float)
    except (KeyError, TypeError, ValueError, AttributeError):
        return None
    if stacked.ndim != 4 or stacked.shape[-1] != len(operations):
        return None
    known = np.isfinite(stacked).all((1, 2, 3))
    stacked, epochs = stacked[known], [epoch for epoch, good in zip(epochs, known, strict=True) if good]
    names = ("selection", "application", "magnitude")
    return Trajectory(operations, epochs, {name: stacked[:, index] for index, name in enumerate(names)})


def _policy(path: Path, missing: list[str]) -> PolicySpec | None:
    try:
        return PolicySpec.load(path)
    except FileNotFoundError:
        return None
    except PolicyFileError as error:
        missing.append(str(error))
        return None


def _samples(path: Path) -> tuple[np.ndarray | None, np.ndarray | None]:
    try:
        with np.load(path, allow_pickle=False) as archive:
            images: np.ndarray = archive["images"]
            labels: np.ndarray = archive["labels"] if "labels" in archive else np.zeros(0)
    except (ValueError, KeyError, OSError, EOFError, zipfile.BadZipFile):
        return None, None
    good = images.ndim == 4 and images.dtype == np.uint8 and images.shape[1] in (1, 3) and images.size > 0
    labelled = labels.shape == images.shape[:1] and np.issubdtype(labels.dtype, np.integer)
    return (images, labels if labelled else None) if good else (None, None)
