"""The request for an outer step, and its result."""

import dataclasses
from collections.abc import Callable
from typing import Any

from torch import Tensor

from madao.distributed.group import Shard
from madao.hypergrad import Stats


@dataclasses.dataclass(frozen=True)
class OuterStep:
    """The result of an outer step.

    Attributes:
        stats: The health of the hypergradient.
        applied: Whether the policy was updated. It is not if the hypergradient diverges or is not finite.
        signal: For each kind of parameter, the squared signal-to-noise ratio of a step, estimated from recent steps
            (`RunningSignal`). Empty at first.
    """

    stats: Stats
    applied: bool
    signal: dict[str, float] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class OuterShards:
    """The images of this process among those of all processes.

    Attributes:
        train: The training images, each repeated for each of its draws.
        curvature: The first of these, from which curvature is taken, or a gradient.
        pathwise: The first of these, whose derivative in the magnitudes is taken.
        validation: The validation images.
    """

    train: Shard
    curvature: Shard
    pathwise: Shard
    validation: Shard


@dataclasses.dataclass(frozen=True)
class OuterRequest:
    """The part of an outer step that is not a tensor. Equal requests are computed by the same operations.

    Attributes:
        transform: The function between policy and model for training images. By default that of `PolicyOptimizer`.
        rest: How many tensors of the training batch, after images and targets, `transform` takes.
        check: Whether the residual is measured.
        state: The state of the solver. A CUDA graph reads its tensors at every replay.
        shards: The part of the images that this process has; None if there is one process.
        seed: The seed of dropout.
    """

    transform: Callable[..., Tensor] | None = None
    rest: int = 0
    check: bool = False
    state: Any = None
    shards: OuterShards | None = None
    seed: int = dataclasses.field(default=0, compare=False)
