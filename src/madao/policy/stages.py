"""The numbers of a policy's stages in real units, as policy files hold them."""

import dataclasses
from collections.abc import Sequence
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor

from madao.ops import Operation
from madao.ops.geometric import Fill


@dataclasses.dataclass(frozen=True)
class OperationParams:
    """The numbers of one operation in one stage.

    Attributes:
        selection: Probability that the stage draws this operation.
        application: Probability that it is applied once drawn.
        magnitude: Its parameter in real units (degrees, factor, …), on the positive side if signed; None if the
            operation has no magnitude.
    """

    KINDS: ClassVar = ("selection", "application", "magnitude")

    selection: float
    application: float
    magnitude: float | None = None

    @classmethod
    def rounded(cls, operation: Operation, selection: float, application: float, magnitude: float) -> "OperationParams":
        """Return the numbers, with μ in [0, 1], in real units and six significant digits, about what float32 holds."""
        value = None
        if operation.range is not None:
            neutral, strongest = operation.range
            value = round_sig(neutral + magnitude * (strongest - neutral))
            value = min(max(value, min(operation.range)), max(operation.range))
        return cls(round_sig(selection), round_sig(application), value)


Stages = tuple[tuple[OperationParams, ...], ...]
"""For each stage, one `OperationParams` per operation."""


class PolicyNumbers(Protocol):
    """The numbers that all images share, as a `PolicySpec` has them."""

    @property
    def operations(self) -> tuple[Operation, ...]:
        """The operations, with their ranges."""

    @property
    def stages(self) -> Stages:
        """For each stage, one `OperationParams` per operation."""

    @property
    def fill(self) -> Fill:
        """Colour that geometric operations leave outside the image."""

    @property
    def magnitude_jitter(self) -> float:
        """The random variation of magnitudes."""

    @property
    def conditional_on(self) -> str:
        """Whether other numbers are added that depend on the class or the image."""

    def tensors(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return selection, application and μ in [0, 1], `[K, n]` each."""


def round_sig(value: float) -> float:
    """Round to six significant digits."""
    return float(f"{value:.6g}")


def rounded_stages(operations: Sequence[Operation], *numbers: Tensor) -> Stages:
    """Return the stages for selection, application and μ in [0, 1], `[K, n]` each."""
    columns = [tensor.tolist() for tensor in numbers]
    return tuple(
        tuple(OperationParams.rounded(*row) for row in zip(operations, *stage, strict=True))
        for stage in zip(*columns, strict=True)
    )


def stage_tensors(operations: Sequence[Operation], stages: Stages, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """Return selection, application and μ in [0, 1], `[K, n]` each; μ is 0 where there is no magnitude."""
    selection = torch.tensor([[entry.selection for entry in stage] for stage in stages], dtype=torch.float64)
    application = torch.tensor([[entry.application for entry in stage] for stage in stages], dtype=dtype)
    magnitude = torch.tensor(
        [[_relative(*pair) for pair in zip(operations, stage, strict=True)] for stage in stages], dtype=dtype
    )
    return (selection / selection.sum(-1, keepdim=True)).to(dtype), application, magnitude


def check_stages(where: str, operations: Sequence[Operation], stages: Stages) -> None:
    """Raise unless each stage has numbers that fit its operations and probabilities that sum to 1."""
    for number, stage in enumerate(stages):
        if len(stage) != len(operations):
            raise ValueError(f"{where}[{number}]: {len(stage)} entries for {len(operations)} operations; give one each")
        for operation, entry in zip(operations, stage, strict=True):
            _check_entry(f"{where}[{number}].{operation.name}", operation, entry)
        total = sum(entry.selection for entry in stage)
        if abs(total - 1) > 1e-3:
            raise ValueError(f"{where}[{number}]: selection probabilities must sum to 1, they sum to {total:.6g}")


def check_within(where: str, value: Any, low: float, high: float) -> None:
    """Raise unless a value is a number from `low` to `high`."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
        raise ValueError(f"{where}: must be a number from {low:g} to {high:g}, got {value!r}")


def _check_entry(where: str, operation: Operation, entry: OperationParams) -> None:
    check_within(f"{where}.selection", entry.selection, 0, 1)
    check_within(f"{where}.application", entry.application, 0, 1)
    if operation.range is not None:
        check_within(f"{where}.magnitude", entry.magnitude, min(operation.range), max(operation.range))
    elif entry.magnitude is not None:
        raise ValueError(f"{where}.magnitude: {operation.name} has none, got {entry.magnitude!r}; leave it out")


def _relative(operation: Operation, entry: OperationParams) -> float:
    if operation.range is None or entry.magnitude is None:
        return 0.0
    neutral, strongest = operation.range
    return (entry.magnitude - neutral) / (strongest - neutral)
