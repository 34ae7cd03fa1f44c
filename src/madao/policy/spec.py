"""A policy as plain numbers: what files hold, what exports read, what people look at."""

import dataclasses
import os
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from madao.ops import Operation
from madao.ops.checks import check_fill
from madao.ops.geometric import Fill
from madao.policy import specfile
from madao.policy.specfile import PolicyFileError
from madao.policy.words import strength


@dataclasses.dataclass(frozen=True)
class Entry:
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
    def rounded(cls, operation: Operation, selection: float, application: float, magnitude: float) -> "Entry":
        """From a magnitude μ in [0, 1], with six significant digits: what float32 carries and people can read."""
        value = None
        if operation.range is not None:
            neutral, strongest = operation.range
            value = min(
                max(_six(neutral + magnitude * (strongest - neutral)), min(operation.range)),
                max(operation.range),
            )
        return cls(_six(selection), _six(application), value)


@dataclasses.dataclass(frozen=True)
class PolicySpec:
    """A frozen policy: per stage, for each operation, the probability of selection and application, and magnitude.

    `str(spec)` is a table, `save` and `load` are JSON, `==` compares everything.

    Attributes:
        operations: The operations, with their ranges.
        stages: For each stage one `Entry` per operation, in the order of `operations`.
        fill: The colour geometric operations leave outside the image, in [0, 1].
    """

    operations: tuple[Operation, ...]
    stages: tuple[tuple[Entry, ...], ...]
    fill: Fill = 0.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "fill", check_fill(self.fill))
        if not self.operations:
            raise ValueError("operations: there is none; a policy needs at least one")
        names = [operation.name for operation in self.operations]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"operations: {name} is there twice; name each operation once")
        if not self.stages:
            raise ValueError("stages: there is none; a policy needs at least one")
        for number, stage in enumerate(self.stages):
            if len(stage) != len(self.operations):
                raise ValueError(
                    f"stages[{number}]: {len(stage)} entries for {len(self.operations)} operations; give one each"
                )
            for operation, entry in zip(self.operations, stage, strict=True):
                _check_entry(f"stages[{number}].{operation.name}", operation, entry)
            total = sum(entry.selection for entry in stage)
            if abs(total - 1) > 1e-3:
                raise ValueError(f"stages[{number}]: selection probabilities must sum to 1, they sum to {total:.6g}")

    def tensors(self, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor, Tensor]:
        """Selection, application and magnitude μ in [0, 1] (0 where there is none), each `[K, n]`."""
        selection = torch.tensor([[entry.selection for entry in stage] for stage in self.stages], dtype=torch.float64)
        application = torch.tensor([[entry.application for entry in stage] for stage in self.stages], dtype=dtype)
        magnitude = torch.tensor(
            [
                [_relative(operation, entry) for operation, entry in zip(self.operations, stage, strict=True)]
                for stage in self.stages
            ],
            dtype=dtype,
        )
        return (selection / selection.sum(-1, keepdim=True)).to(dtype), application, magnitude

    def dumps(self) -> str:
        """The JSON text, one operation a line."""
        return specfile.write(
            self.operations, [[dataclasses.astuple(e) for e in stage] for stage in self.stages], self.fill
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
        operations, stages, fill = specfile.read(text)
        try:
            return cls(operations, tuple(tuple(Entry(*row) for row in stage) for stage in stages), fill)
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
        """A table for people, the operations a stage favours first."""
        lines = []
        for number, stage in enumerate(self.stages):
            lines.append(f"stage {number + 1}      selected  applied  strength")
            rows = sorted(zip(self.operations, stage, strict=True), key=lambda row: -row[1].selection)
            for operation, entry in rows:
                how = strength(operation, entry.magnitude)
                lines.append(f"  {operation.name:<12}{entry.selection:8.1%}{entry.application:9.1%}  {how}")
        return "\n".join(lines)


def _six(value: float) -> float:
    return float(f"{value:.6g}")


def _relative(operation: Operation, entry: Entry) -> float:
    if operation.range is None or entry.magnitude is None:
        return 0.0
    neutral, strongest = operation.range
    return (entry.magnitude - neutral) / (strongest - neutral)


def _check_within(where: str, value: Any, low: float, high: float) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
        raise ValueError(f"{where}: must be a number from {low:g} to {high:g}, got {value!r}")


def _check_entry(where: str, operation: Operation, entry: Entry) -> None:
    _check_within(f"{where}.selection", entry.selection, 0, 1)
    _check_within(f"{where}.application", entry.application, 0, 1)
    if operation.range is not None:
        _check_within(f"{where}.magnitude", entry.magnitude, min(operation.range), max(operation.range))
    elif entry.magnitude is not None:
        raise ValueError(f"{where}.magnitude: {operation.name} has none, got {entry.magnitude!r}; leave it out")
