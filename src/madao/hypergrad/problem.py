"""The problem to differentiate: an outer loss through the solution of an inner problem."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from torch import Tensor

from madao.distributed.group import ProcessGroup

Loss = Callable[[Any, Any], Tensor]
"""`loss(params, inputs)` returns a scalar, or one value per example; the loss is then their mean."""


class SplitLoss(Protocol):
    """A `Loss` that `GaussNewton` can use: it separates the network's outputs from their loss."""

    def outputs(self, params: Any, inputs: Any) -> Tensor:
        """Return the network's outputs."""

    def of_outputs(self, outputs: Tensor, inputs: Any) -> Tensor:
        """Return the loss of the outputs, so that `of_outputs(outputs(params, inputs), inputs)` is the loss."""


@dataclasses.dataclass(frozen=True)
class Term:
    """A summand of a loss, weight · mean(loss(params, inputs)): a microbatch, whose graph is freed before the next.

    Attributes:
        loss: The loss, a function of params and inputs, or of params and `of(inputs)`.
        weight: The weight in the sum.
        pathwise: The weight in the derivative through the inputs, which `Influence` takes. By default `weight`.
            Examples of weight 0 are only scored, which takes a forward pass.
        of: A function that returns a tuple of tensors, which the loss receives in place of the inputs. `Traced` then
            traces and compiles terms of the same loss and of equal shapes once.
    """

    loss: Loss
    weight: float = 1.0
    pathwise: float | None = None
    of: Callable[[Any], tuple[Tensor, ...]] | None = None


@dataclasses.dataclass(frozen=True, eq=False)
class Problem:
    """The problem of choosing φ to minimise g(θ*(φ)), where θ*(φ) minimises f(θ, φ).

    `params` and `inputs` are tensors, or lists, tuples and dicts of tensors. The losses receive them in the same form.
    They must compute from these arguments, not from a model that holds the parameters, and must not write to them.

    Attributes:
        params: θ, at which derivatives are taken, and from which `Unrolled` starts.
        hyper: φ, the tensors whose gradient is computed.
        inner: f(θ, inputs), or a sequence of `Term`s that are summed.
        outer: g(θ, inputs), or a sequence of `Term`s that are summed. A direct dependence on the inputs counts too.
        inputs: The tensors through which the losses depend on φ, with their graph, such as augmented images. By default
            φ.
        curvature: The loss that replaces f in the solver's system, for instance f on fewer examples. Solvers use its
            Hessian. `Deflated` uses its gradient, and `GaussNewton` its Gauss-Newton matrix, from a `SplitLoss`.
        weight_decay: λ of λ/2 ‖θ‖² in f, if the inner optimizer applies it and the loss does not contain it.
        log_prob: For `Influence`: log P of each example's draw, `[B]`, differentiable in φ.
        classes: For the baseline `ClassMean`: the class of each example, `[B]`.
        draws: For the baseline `SameExample`: the number of consecutive rows that are draws of the same example.
        plain: For the baseline `Unaugmented`: the inputs before augmentation, in the form of `inputs`.
        ranks: The processes, if each has some of the examples. The terms of all processes must add up to the loss.
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
    """Return the terms of a loss."""
    return (Term(loss),) if callable(loss) else tuple(loss)


def check_loss(value: Any, name: str) -> Tensor:
    """Return the value of a loss. Raise unless it is a floating-point scalar or vector."""
    if not isinstance(value, Tensor) or value.ndim > 1 or not value.is_floating_point():
        got = f"{value.dtype} of shape {list(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
        raise ValueError(f"the {name} loss must return a floating-point scalar or one value per example, got {got}")
    if value.numel() == 0:
        raise ValueError(f"the {name} loss is empty: the batch has no example")
    return value


def mean(value: Tensor) -> Tensor:
    """Return the mean of per-example values; a scalar unchanged."""
    return value.mean() if value.ndim else value


def as_leaves(tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Return the values as new leaves, each with the `requires_grad` of the original."""
    return tuple(tensor.detach().requires_grad_(tensor.requires_grad) for tensor in tensors)


def detached(tensors: Sequence[Tensor], requires_grad: bool = False) -> tuple[Tensor, ...]:
    """Return the values as new leaves."""
    return tuple(tensor.detach().requires_grad_(requires_grad) for tensor in tensors)
