"""The inverse of the Gauss-Newton matrix, by a few steps of conjugate gradients that never make the host wait."""

import dataclasses
import itertools
import math
from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor

from madao.hypergrad import pytree
from madao.hypergrad.result import TOLERANCE, Solution, Status
from madao.hypergrad.solvers.solver import Solver, System


@dataclasses.dataclass(frozen=True)
class GaussNewton(Solver):
    """q ∝ (G + λI)⁻¹ v, G = Jᵀ S J: J the Jacobian of a network's outputs, S the Hessian of the mean loss in them.

    G is the Hessian without the curvature of the network itself, and where the loss is convex in the outputs, as
    cross-entropy is, it never curves downwards, so that conjugate gradients always make progress; in the midst of
    training the Hessian does (Schraudolph, 2002; Martens, 2010). The first steps take out of v what lies along the
    largest curvatures. That is most of v, and it is what training takes care of by itself.

    The loss has to say what its outputs are (`SplitLoss`), floating-point tensors that have a forward-mode derivative,
    and where it is not convex in them, as MoCo's, the steps end before the first direction of no positive curvature; q
    is v if that is v. An estimator that scores draws stays unbiased only if G is of other draws: give
    `Problem.curvature`, as `PolicyOptimizer` does.

    Attributes:
        steps: Products with G, all of which are spent.
        damping: λ / (‖G v‖ / ‖v‖), the latter being the curvature that v meets.
        scale: ‖q‖ / ‖v‖. What is left of v is short or long as the few images of a batch happen to curve, and an
            optimizer of φ that normalises its steps would learn from the longest alone. None for the inverse's own.
    """

    needs_independent_draw: ClassVar[bool] = True
    checkable: ClassVar[bool] = False

    steps: int = 10
    damping: float = 0.01
    scale: float | None = 1.0

    def __post_init__(self) -> None:
        if self.steps < 1:
            raise ValueError(f"steps must be at least 1, got {self.steps}")
        if not self.damping >= 0:
            raise ValueError(f"damping must be at least 0, got {self.damping}")
        if self.scale is not None and not self.scale > 0:
            raise ValueError(f"scale must be above 0, got {self.scale}")

    def solve(self, system: System, state: None = None) -> Solution:
        """Iterate from zero."""
        v = system.v

        def product(flat: Tensor) -> Tensor:
            return pytree.flat(system.gauss_newton(pytree.shaped(flat, v)))

        residual = direction = pytree.flat(v)
        tiny = torch.finfo(residual.dtype).tiny
        image, squared = product(direction), residual.dot(residual)
        damping = self.damping * torch.linalg.vector_norm(image) / squared.sqrt().clamp(min=tiny)
        solution, squares, goes_on = torch.zeros_like(residual), [squared], torch.ones_like(squared, dtype=torch.bool)
        for step in range(self.steps):
            image = (image if step == 0 else product(direction)) + damping * direction
            curved = direction.dot(image)
            goes_on = goes_on & (curved > 0)
            if step == 0:
                solution = torch.where(goes_on, solution, residual)
            length = torch.where(goes_on, squared / curved.clamp(min=tiny), 0)
            solution, residual = solution + length * direction, residual - length * image
            before, squared = squared, residual.dot(residual)
            direction = residual + squared / before.clamp(min=tiny) * direction
            squares.append(squared)
        if self.scale is not None:
            solution *= self.scale * squares[0].sqrt() / torch.linalg.vector_norm(solution).clamp(min=tiny)
        norms = torch.stack(squares).double().sqrt()
        left = norms[-1] / norms[0].clamp(min=tiny)
        return Solution(pytree.shaped(solution, v), norms, left, self.steps, _status)

    def for_comparison(self) -> "GaussNewton":
        """Return the same solver with two steps: on a few images, rounding decides where more steps lead."""
        return dataclasses.replace(self, steps=2)


def _status(norms: Sequence[float], residual: float | None) -> Status:
    """By the residuals of the damped system, which stay as they are, to the bit, where the steps have ended."""
    if not all(map(math.isfinite, norms)):
        return Status.NON_FINITE
    if residual is not None and residual <= TOLERANCE:
        return Status.CONVERGED
    ended = any(before == after for before, after in itertools.pairwise(norms))
    return Status.NEGATIVE_CURVATURE if ended else Status.TRUNCATED
