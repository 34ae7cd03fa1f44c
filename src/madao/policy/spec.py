"""A policy as plain numbers: what files hold, what exports read, what people look at."""

import dataclasses
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from madao.errors import PolicyFileError
from madao.ops import Operation
from madao.ops.checks import check_fill
from madao.ops.geometric import Fill
from madao.policy import spec_json
from madao.policy.conditional.network import Network
from madao.policy.describe import strength


@dataclasses.dataclass(frozen=True)
class OperationParams:
    """One operation in one stage.

    Attributes:
        selection: Probability that the stage draws this operation.
        application: Probability that it is applied once drawn.
        magnitude: Its parameter in real units (degrees, factor, …), on the positive side where signed; None
            where the operation has none.
    """

    selection: float
    application: float
    magnitude: float | None = None

    @classmethod
    def rounded(cls, operation: Operation, selection: float, application: float, magnitude: float) -> "OperationParams":
        """From a magnitude μ in [0, 1], with six significant digits: what float32 carries and people can read."""
        value = None
        if operation.range is not None:
            neutral, strongest = operation.range
            value = min(
                max(round_sig(neutral + magnitude * (strongest - neutral)), min(operation.range)),
                max(operation.range),
            )
        return cls(round_sig(selection), round_sig(application), value)


Stages = tuple[tuple[OperationParams, ...], ...]
"""For each stage one `Entry` per operation."""


@dataclasses.dataclass(frozen=True)
class PolicySpec:
    """A frozen policy: per stage, for each operation, the probability of selection and application, and magnitude.

    `str(spec)` is a table, `save` and `load` are JSON, `==` compares everything.

    Attributes:
        operations: The operations, with their ranges.
        stages: For each stage one `Entry` per operation, in the order of `operations`. Of a policy with classes, what
            they share.
        fill: The colour geometric operations leave outside the image, in [0, 1].
        classes: Names of the classes, in the order of labels; none where labels make no difference.
        class_stages: For each class its own stages, which images of it are drawn for by.
        network: Of a policy that looks at images, how each one's logits depart from those of `stages`.
        magnitude_jitter: v in [0, 1]: a drawn magnitude lies anywhere from (1 − v) μ to μ.
    """

    operations: tuple[Operation, ...]
    stages: Stages
    fill: Fill = 0.0
    classes: tuple[str, ...] = ()
    class_stages: tuple[Stages, ...] = ()
    network: Network | None = None
    magnitude_jitter: float = 0.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "fill", check_fill(self.fill))
        check_magnitude_jitter(self.magnitude_jitter)
        if not self.operations:
            raise ValueError("operations: there is none; a policy needs at least one")
        names = [operation.name for operation in self.operations]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"operations: {name} is there twice; name each operation once")
        if not self.stages:
            raise ValueError("stages: there is none; a policy needs at least one")
        self._check_stages("stages", self.stages)
        if len(self.classes) != len(self.class_stages):
            raise ValueError(f"classes: {len(self.classes)} names for {len(self.class_stages)} classes; give one each")
        for name, stages in zip(self.classes, self.class_stages, strict=True):
            if self.classes.count(name) > 1:
                raise ValueError(f"classes: {name} is there twice; name each class once")
            if len(stages) != len(self.stages):
                raise ValueError(
                    f"classes.{name}: {len(stages)} stages where the shared part has {len(self.stages)}; give as many"
                )
            self._check_stages(f"classes.{name}", stages)
        if self.network is not None:
            self._check_network(self.network)

    def _check_network(self, network: Network) -> None:
        if self.classes:
            raise ValueError("network: a policy has classes or a network, not both; leave one out")
        for name, found, expected in (
            ("stages", len(network.stages), len(self.stages)),
            *((f"stages[{k}]", len(stage), len(self.operations)) for k, stage in enumerate(network.stages)),
        ):
            if found != expected:
                raise ValueError(f"network.{name}: {found} entries where there are {expected}; give one each")
        for number, stage in enumerate(network.stages):
            for operation, outputs in zip(self.operations, stage, strict=True):
                if (outputs.magnitude is not None) != operation.has_magnitude:
                    there = "is missing" if operation.has_magnitude else "is not there to depart from"
                    raise ValueError(f"network.stages[{number}].{operation.name}: the magnitude {there}")

    def _check_stages(self, where: str, stages: Stages) -> None:
        for number, stage in enumerate(stages):
            if len(stage) != len(self.operations):
                raise ValueError(
                    f"{where}[{number}]: {len(stage)} entries for {len(self.operations)} operations; give one each"
                )
            for operation, entry in zip(self.operations, stage, strict=True):
                _check_entry(f"{where}[{number}].{operation.name}", operation, entry)
            total = sum(entry.selection for entry in stage)
            if abs(total - 1) > 1e-3:
                raise ValueError(f"{where}[{number}]: selection probabilities must sum to 1, they sum to {total:.6g}")

    def of_class(self, name: str | None) -> "PolicySpec":
        """The law of one class as a policy without classes; of None, what classes or images share."""
        if name is not None and name not in self.classes:
            known = f"this policy has {', '.join(self.classes[:20])}" if self.classes else "this policy has none"
            raise ValueError(f"unknown class {name!r}; {known}")
        stages = self.stages if name is None else self.class_stages[self.classes.index(name)]
        return dataclasses.replace(self, stages=stages, classes=(), class_stages=(), network=None)

    def tensors(self, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor, Tensor]:
        """Selection, application and magnitude μ in [0, 1] (0 where there is none), each `[K, n]`."""
        return self._numbers(self.stages, dtype)

    def tables(self, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor, Tensor]:
        """The same with a row for each class, `[K, C, n]`; with one row where there are no classes."""
        found = [self._numbers(stages, dtype) for stages in self.class_stages or (self.stages,)]
        selection, application, magnitude = (torch.stack(values, 1) for values in zip(*found, strict=True))
        return selection, application, magnitude

    def _numbers(self, stages: Stages, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
        selection = torch.tensor([[entry.selection for entry in stage] for stage in stages], dtype=torch.float64)
        application = torch.tensor([[entry.application for entry in stage] for stage in stages], dtype=dtype)
        magnitude = torch.tensor(
            [
                [_relative(operation, entry) for operation, entry in zip(self.operations, stage, strict=True)]
                for stage in stages
            ],
            dtype=dtype,
        )
        return (selection / selection.sum(-1, keepdim=True)).to(dtype), application, magnitude

    def dumps(self) -> str:
        """The JSON text, one operation a line."""
        classes = {name: _rows(stages) for name, stages in zip(self.classes, self.class_stages, strict=True)}
        return spec_json.write(
            self.operations, _rows(self.stages), self.fill, classes, self.network, self.magnitude_jitter
        )

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the JSON file; a crash leaves the old file or the new one, never half of one."""
        path = Path(path)
        temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
        try:
            temporary.write_text(self.dumps(), encoding="utf-8")
            os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)

    @classmethod
    def loads(cls, text: str) -> "PolicySpec":
        """Read JSON text. Raises `PolicyFileError`."""
        operations, stages, fill, classes, network, magnitude_jitter = spec_json.read(text)
        try:
            each = tuple(_stages(part) for part in classes.values())
            return cls(operations, _stages(stages), fill, tuple(classes), each, network, magnitude_jitter)
        except ValueError as error:
            raise PolicyFileError(f"{error}; correct the file or write it again from the policy") from None

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "PolicySpec":
        """Read a JSON file. Raises `PolicyFileError`, or `OSError` where the file cannot be opened."""
        try:
            return cls.loads(Path(path).read_text(encoding="utf-8"))
        except UnicodeDecodeError:
            raise PolicyFileError(f"{path}: not a text file, so not a madao policy; give a policy.json") from None
        except PolicyFileError as error:
            raise PolicyFileError(f"{path}: {error}") from None

    def __str__(self) -> str:
        """A table for people, the operations a stage favours first; where laws differ, of what they share."""
        lines = []
        for number, stage in enumerate(self.stages):
            lines.append(f"stage {number + 1}      selected  applied  strength")
            rows = sorted(zip(self.operations, stage, strict=True), key=lambda row: -row[1].selection)
            for operation, entry in rows:
                how = strength(operation, entry.magnitude, self.magnitude_jitter)
                lines.append(f"  {operation.name:<12}{entry.selection:8.1%}{entry.application:9.1%}  {how}")
        return "\n".join(lines)


def rounded_stages(operations: Sequence[Operation], *numbers: Tensor) -> Stages:
    """From selection, application and μ in [0, 1], `[K, n]` each."""
    columns = [tensor.tolist() for tensor in numbers]
    return tuple(
        tuple(OperationParams.rounded(*row) for row in zip(operations, *stage, strict=True))
        for stage in zip(*columns, strict=True)
    )


def _rows(stages: Stages) -> list[list[spec_json.Row]]:
    return [[(entry.selection, entry.application, entry.magnitude) for entry in stage] for stage in stages]


def _stages(rows: Sequence[Sequence[spec_json.Row]]) -> Stages:
    return tuple(tuple(OperationParams(*row) for row in stage) for stage in rows)


def round_sig(value: float) -> float:
    """With six significant digits."""
    return float(f"{value:.6g}")


def _relative(operation: Operation, entry: OperationParams) -> float:
    if operation.range is None or entry.magnitude is None:
        return 0.0
    neutral, strongest = operation.range
    return (entry.magnitude - neutral) / (strongest - neutral)


def check_magnitude_jitter(magnitude_jitter: float) -> float:
    """Raise unless it lies in [0, 1]."""
    _check_within("variation", magnitude_jitter, 0, 1)
    return magnitude_jitter


def _check_within(where: str, value: Any, low: float, high: float) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
        raise ValueError(f"{where}: must be a number from {low:g} to {high:g}, got {value!r}")


def _check_entry(where: str, operation: Operation, entry: OperationParams) -> None:
    _check_within(f"{where}.selection", entry.selection, 0, 1)
    _check_within(f"{where}.application", entry.application, 0, 1)
    if operation.range is not None:
        _check_within(f"{where}.magnitude", entry.magnitude, min(operation.range), max(operation.range))
    elif entry.magnitude is not None:
        raise ValueError(f"{where}.magnitude: {operation.name} has none, got {entry.magnitude!r}; leave it out")
