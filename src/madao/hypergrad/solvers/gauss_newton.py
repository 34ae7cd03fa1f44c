"""The inverse of the Gauss-Newton matrix by conjugate gradients that never make the host wait."""

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
    """A solver that finds q ∝ (G + λI)⁻¹ v by a few steps of conjugate gradients, with G = Jᵀ S J.

    J is the Jacobian of the network's outputs and S is the Hessian of the mean loss in the outputs: G is the Hessian
    without the curvature of the network. If the loss is convex in the outputs, as cross-entropy is, G has no negative
    curvature, unlike the Hessian during training (Schraudolph, 2002; Martens, 2010). The first steps remove from v its
    part along the largest curvatures. This is most of v, and training reduces the loss along it anyway.

    The loss must be a `SplitLoss` whose outputs are floating-point tensors with a forward-mode derivative. If the loss
    is not convex in the outputs, as MoCo's is not, the steps end before the first direction without positive curvature;
    if v is this direction, q is v. If an estimator scores draws, G must come from other draws, or the estimate is
    biased: set `Problem.curvature`, as `PolicyOptimizer` does.

    Attributes:
        steps: How many products with G are spent.
        damping: λ as a multiple of ‖G v‖ / ‖v‖, which is the curvature along v.
        scale: ‖q‖ / ‖v‖; None for the length of the inverse. That length varies with the curvature of the few images in
            a batch, and an optimizer that normalises its steps would learn mostly from the longest q.
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
        """Iterate from zero, with the same number of products in any case."""
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
    """Return the status. After the steps have ended, the residual repeats to the bit."""
    if not all(map(math.isfinite, norms)):
        return Status.NON_FINITE
    if residual is not None and residual <= TOLERANCE:
        return Status.CONVERGED
    ended = any(before == after for before, after in itertools.pairwise(norms))
    return Status.NEGATIVE_CURVATURE if ended else Status.TRUNCATED
