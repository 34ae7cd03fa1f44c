"""What is differentiated: an outer loss through the solution of an inner problem."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from torch import Tensor

from madao.distributed.group import ProcessGroup

Loss = Callable[[Any, Any], Tensor]
"""`loss(params, inputs)`: a scalar, or one value per example, of which the mean is the loss."""


class SplitLoss(Protocol):
    """A loss of a network's outputs: what `GaussNewton` needs of a `Loss`."""

    def outputs(self, params: Any, inputs: Any) -> Tensor:
        """What the network says."""

    def of_outputs(self, outputs: Tensor, inputs: Any) -> Tensor:
        """The loss of that; `loss(params, inputs)` is the one of the other."""


@dataclasses.dataclass(frozen=True)
class Term:
    """A part of a loss, weight · mean(loss(params, inputs)): a microbatch, whose graph is freed before the next.

    Attributes:
        loss: Of params and inputs, or of what `of` makes of them.
        weight: In the sum.
        pathwise: For `Influence`: its weight in the derivative by way of the inputs, where that is taken of a part of
            the examples; 0 for those that are only scored, at the price of a forward pass. By default the weight.
        of: `of(inputs)`, a tuple of tensors that the loss takes in place of the inputs: a part of them, and what else
            it is computed from, labels say. Terms of one loss and of equal shapes are then one function to `Traced`,
            which traces and compiles it once. By default the loss takes the inputs themselves.
    """

    loss: Loss
    weight: float = 1.0
    pathwise: float | None = None
    of: Callable[[Any], tuple[Tensor, ...]] | None = None


@dataclasses.dataclass(frozen=True, eq=False)
class Problem:
    """Choose φ to lower g(θ*(φ)), where θ*(φ) minimises f(θ, φ).

    `params` and `inputs` may be a tensor, or lists, tuples and dicts of tensors; losses receive them in the same form,
    compute from what they receive (not from a model that holds the parameters itself), and write to none of it.

    Attributes:
        params: θ, where the inner problem stands (or starts, for `Unrolled`).
        hyper: φ, the tensors a gradient is wanted for.
        inner: f(θ, inputs). A sequence of `Term`s is summed.
        outer: g(θ, inputs). A sequence of `Term`s is summed. A direct dependence on the inputs counts too.
        inputs: What the losses see of φ, computed from it with a graph: augmented images, say. By default φ itself.
        curvature: The loss whose Hessian is used in f's place, for instance f on fewer examples; for `Deflated` its
            gradient, for `GaussNewton`, which wants a `SplitLoss`, its Gauss-Newton matrix. By default f.
        weight_decay: λ of λ/2 ‖θ‖² in f, where the inner optimizer has it and the loss does not.
        log_prob: For `Influence`: log P of what was drawn for each example, `[B]`, differentiable in φ.
        classes: For the baseline `ClassMean`: the class of each example, `[B]`.
        draws: For the baseline `SameExample`: how many draws of one example follow each other in the batch.
        plain: For the baseline `Unaugmented`: the inputs as they were before any draw, in the form of `inputs`.
        ranks: Where several processes have a part of the examples each: weights of `Term`s are then such that losses of
            all processes add up to the loss.
    """

    params: Any
    hyper: Any
    inner: Loss | Sequence[Term]
    outer: Loss | Sequence[Term]
    inputs: Any = None
    curvature: Loss | Sequence[Term] | None = None
    weight_decay: float = 0.0
    log_prob: Tensor | None = None
    classes: Tensor | None = None
    draws: int = 1
    plain: Any = None
    ranks: ProcessGroup = dataclasses.field(default_factory=ProcessGroup)


def as_terms(loss: Loss | Sequence[Term]) -> tuple[Term, ...]:
    """A loss as the terms it is the sum of."""
    return (Term(loss),) if callable(loss) else tuple(loss)


def check_loss(value: Any, name: str) -> Tensor:
    """Raise unless a loss gave a scalar or a vector of floating point."""
    if not isinstance(value, Tensor) or value.ndim > 1 or not value.is_floating_point():
        got = f"{value.dtype} of shape {list(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
        raise ValueError(f"the {name} loss must return a floating-point scalar or one value per example, got {got}")
    if value.numel() == 0:
        raise ValueError(f"the {name} loss is empty: the batch has no example")
    return value


def mean(value: Tensor) -> Tensor:
    """The loss from a scalar or per-example values."""
    return value.mean() if value.ndim else value


def as_leaves(tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """The same values as new leaves, which want a gradient where the given ones do."""
    return tuple(tensor.detach().requires_grad_(tensor.requires_grad) for tensor in tensors)


def detached(tensors: Sequence[Tensor], requires_grad: bool = False) -> tuple[Tensor, ...]:
    """The same values as new leaves."""
    return tuple(tensor.detach().requires_grad_(requires_grad) for tensor in tensors)
