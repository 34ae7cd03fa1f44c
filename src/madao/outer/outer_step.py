"""What is asked of an outer step, and what it did."""

import dataclasses
from collections.abc import Callable
from typing import Any

from torch import Tensor

from madao.distributed.group import Shard
from madao.hypergrad import Stats


@dataclasses.dataclass(frozen=True)
class OuterStep:
    """What one outer step did.

    Attributes:
        stats: The health of the hypergradient.
        applied: Whether the policy was updated. It is not where the hypergradient diverges or is not finite.
        signal: Of each kind of parameter, the squared signal-to-noise ratio of a step, as far as recent steps tell
            (`RunningSignal`). Empty at first.
    """

    stats: Stats
    applied: bool
    signal: dict[str, float] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class OuterShards:
    """Where the images of a process stand among those of all of them.

    Attributes:
        train: The training images, each as often as it is drawn for.
        curved: Of these, those whose curvature or gradient is taken.
        pathwise: Of these, those through which the magnitudes' derivative goes.
        validation: The validation images.
    """

    train: Shard
    curved: Shard
    pathwise: Shard
    validation: Shard


@dataclasses.dataclass(frozen=True)
class OuterRequest:
    """What is asked of an outer step beside the values of its tensors.

    Attributes:
        transform: What stands between policy and model, for training images.
        rest: How many tensors of the training batch, after images and targets, are for it.
        check: Whether the residual is measured.
        state: The solver's state; a recorded step reads it at the same address at every replay.
        places: Of the images among those of all processes. By default there is one process.
    """

    transform: Callable[..., Tensor] | None
    rest: int
    check: bool
    state: Any = None
    places: OuterShards | None = None
