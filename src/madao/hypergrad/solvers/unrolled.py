"""Differentiation through T steps of the inner optimizer: exact for those steps, with T times the memory."""

import dataclasses
from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor

from madao.hypergrad import pytree
from madao.hypergrad.flat_problem import FlatProblem, FlatTerm
from madao.hypergrad.problem import detached, mean
from madao.hypergrad.pytree import Vector
from madao.hypergrad.solvers.solver import Path, Solver


@dataclasses.dataclass(frozen=True)
class Momentum:
    """A step of gradient descent with momentum β: m ← β m + ∇f, θ ← θ − η m."""

    learning_rate: float = 0.1
    momentum: float = 0.0


@dataclasses.dataclass(frozen=True)
class Unrolled(Solver):
    """A solver that takes `steps` inner steps from θ and differentiates g(θ_T) through all of them.

    It serves as a reference for the others; the paper compares its memory with it. It takes no Hessian-vector products
    and uses the derivative of the inputs in φ, so that `Relaxed` is the only estimator that goes with it.
    """

    differentiates_path: ClassVar[bool] = True
    checkable: ClassVar[bool] = False

    steps: int = 10
    optimizer: Momentum = Momentum()

    def __post_init__(self) -> None:
        if self.steps < 1:
            raise ValueError(f"steps must be at least 1, got {self.steps}")

    def differentiate(self, problem: FlatProblem) -> Path:
        """Take the steps, then differentiate through the graph of all of them."""
        if problem.ranks.world > 1:
            raise ValueError("Unrolled does not work over several processes; use another solver")
        leaves, start = detached(problem.inputs, requires_grad=True), detached(problem.params, requires_grad=True)
        point = start
        velocity, norms = pytree.zeros_like(point), []
        with torch.enable_grad():
            for _ in range(self.steps):
                value = _value(problem.inner, point, leaves)
                gradient: Vector = torch.autograd.grad(value, point, create_graph=True, materialize_grads=True)
                gradient = pytree.add(gradient, point, problem.weight_decay)
                norms.append(pytree.norm(detached(gradient)))
                velocity = pytree.add(gradient, velocity, self.optimizer.momentum)
                point = pytree.add(point, velocity, -self.optimizer.learning_rate)
            result = _value(problem.outer, point, leaves)
            gradients = torch.autograd.grad(result, (*leaves, *point, *start), materialize_grads=True)
        inputs, end = len(leaves), len(leaves) + len(start)
        parts = gradients[:inputs], gradients[inputs:end], gradients[end:]
        return Path(*parts, float(result.detach()), tuple(torch.stack(norms).tolist()))


def _value(terms: Sequence[FlatTerm], params: Vector, inputs: Vector) -> Tensor:
    return torch.stack([term.weight * mean(term.loss(params, term.given(inputs))) for term in terms]).sum()
