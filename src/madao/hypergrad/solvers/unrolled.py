"""Differentiation through the steps of the inner optimizer: exact for those steps, memory O(T · M)."""

import dataclasses
from collections.abc import Sequence

import torch
from torch import Tensor

from madao.hypergrad import pytree
from madao.hypergrad.estimators.estimators import FlatProblem
from madao.hypergrad.flat_problem import FlatTerm
from madao.hypergrad.problem import detached, mean
from madao.hypergrad.pytree import Vector


@dataclasses.dataclass(frozen=True)
class Momentum:
    """Gradient descent with momentum: m ← β m + ∇f, θ ← θ − η m.

    Attributes:
        learning_rate: η.
        momentum: β.
    """

    learning_rate: float = 0.1
    momentum: float = 0.0


@dataclasses.dataclass(frozen=True, eq=False)
class Path:
    """What came of the steps.

    Attributes:
        gradient: dg(θ_T)/d inputs.
        outer_gradient: ∇θ g at θ_T.
        start_gradient: dg(θ_T)/dθ_0: short where the steps contract, so that where they began is forgotten.
        outer_loss: g(θ_T).
        inner_norms: ‖∇f‖ before each step.
    """

    gradient: Vector
    outer_gradient: Vector
    start_gradient: Vector
    outer_loss: float
    inner_norms: tuple[float, ...]


@dataclasses.dataclass(frozen=True)
class Unrolled:
    """Takes T steps of the inner problem from θ and differentiates g(θ_T) through all of them.

    The oracle for the others, and what the paper compares its memory with. No Hessian-vector products, no estimator:
    the inputs' own derivative in φ is used.

    Attributes:
        steps: T.
        optimizer: How a step is taken.
    """

    steps: int = 10
    optimizer: Momentum = Momentum()

    def __post_init__(self) -> None:
        if self.steps < 1:
            raise ValueError(f"steps must be at least 1, got {self.steps}")

    def differentiate(self, setting: FlatProblem, outer: Sequence[FlatTerm], weight_decay: float) -> Path:
        """Forward through the steps, backward through the graph of all of them."""
        leaves, start = detached(setting.inputs, requires_grad=True), detached(setting.params, requires_grad=True)
        point = start
        velocity, norms = pytree.zeros_like(point), []
        with torch.enable_grad():
            for _ in range(self.steps):
                value = _value(setting.terms, point, leaves)
                gradient: Vector = torch.autograd.grad(value, point, create_graph=True, materialize_grads=True)
                gradient = pytree.add(gradient, point, weight_decay)
                norms.append(pytree.norm(detached(gradient)))
                velocity = pytree.add(gradient, velocity, self.optimizer.momentum)
                point = pytree.add(point, velocity, -self.optimizer.learning_rate)
            result = _value(outer, point, leaves)
            gradients = torch.autograd.grad(result, (*leaves, *point, *start), materialize_grads=True)
        inputs, end = len(leaves), len(leaves) + len(start)
        return Path(
            gradients[:inputs],
            gradients[inputs:end],
            gradients[end:],
            float(result.detach()),
            tuple(torch.stack(norms).tolist()),
        )


def _value(terms: Sequence[FlatTerm], params: Vector, inputs: Vector) -> Tensor:
    return torch.stack([term.weight * mean(term.loss(params, term.given(inputs))) for term in terms]).sum()
