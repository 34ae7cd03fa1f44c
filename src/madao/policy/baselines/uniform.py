"""The uniform policy: the control that shows how much learning adds."""

import dataclasses
from collections.abc import Iterable, Mapping

from madao.ops import PAPER, Operation, choose
from madao.ops.geometric import Fill
from madao.policy.frozen import FrozenPolicy
from madao.policy.learned import START
from madao.policy.spec import PolicySpec
from madao.policy.stages import OperationParams


class Uniform(FrozenPolicy):
    """A fixed policy with the numbers that a learned `Policy` starts with.

    `application` is the probability of every operation to be applied once drawn, and `magnitude` its μ. Other arguments
    are those of `Policy`.

    Example:
        >>> augmented = madao.Uniform(magnitude=0.3)(images)
    """

    def __init__(
        self,
        stages: int = 2,
        operations: Iterable[str | Operation] = PAPER,
        *,
        limits: Mapping[str, float] | None = None,
        exclude: Iterable[str] = (),
        application: float = START,
        magnitude: float = START,
        fill: Fill = 0.0,
        magnitude_jitter: float = 0.0,
        seed: int = 0,
    ) -> None:
        chosen = choose(operations, limits, exclude)
        spec = uniform_spec(chosen, stages, application, magnitude, fill)
        super().__init__(dataclasses.replace(spec, magnitude_jitter=magnitude_jitter), seed)


def uniform_spec(
    operations: tuple[Operation, ...], stages: int, application: float, magnitude: float, fill: Fill
) -> PolicySpec:
    """Return a spec in which all operations have the same probabilities and the same μ."""
    for name, value in (("application", application), ("magnitude", magnitude)):
        if not 0 <= value <= 1:
            raise ValueError(f"{name} must lie in [0, 1], got {value!r}")
    if not isinstance(stages, int) or stages < 1:
        raise ValueError(f"the number of stages must be a whole number of at least 1, got {stages!r}")
    stage = tuple(
        OperationParams.rounded(operation, 1 / len(operations), application, magnitude) for operation in operations
    )
    return PolicySpec(operations, (stage,) * stages, fill)
