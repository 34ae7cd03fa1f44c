"""Conjugate gradient (Rajeswaran et al., 2019; Pedregosa, 2016)."""

import dataclasses
import math

from madao.hypergrad import pytree
from madao.hypergrad.result import Solution, Status
from madao.hypergrad.solvers.solver import Solver, System


@dataclasses.dataclass(frozen=True)
class ConjugateGradient(Solver):
    """A solver of (H + damping · I) q = v, exact after as many steps as H has different eigenvalues.

    It stops after `steps` products, or once ‖v − (H + damping · I) q‖ ≤ tolerance · ‖v‖. The damping must exceed the
    most negative curvature of the inner loss.
    """

    steps: int = 10
    tolerance: float = 1e-6
    damping: float = 0.0

    def __post_init__(self) -> None:
        if self.steps < 1:
            raise ValueError(f"steps must be at least 1, got {self.steps}")
        if self.damping < 0 or self.tolerance < 0:
            raise ValueError(f"tolerance and damping must be at least 0, got {self.tolerance} and {self.damping}")

    def solve(self, system: System, state: None = None) -> Solution:
        """Iterate from zero. Stop and keep the solution so far if a direction has no positive curvature."""
        v = system.v
        solution, residual, direction = pytree.zeros_like(v), v, v
        squared = float(pytree.dot(residual, residual))
        start = math.sqrt(squared)
        norms, status, products = [start], Status.TRUNCATED, 0
        while products < self.steps:
            if not math.isfinite(squared):
                status = Status.NON_FINITE
                break
            if math.sqrt(squared) <= self.tolerance * start:
                status = Status.CONVERGED
                break
            image = pytree.add(system.hessian(direction), direction, self.damping)
            products += 1
            curvature = float(pytree.dot(direction, image))
            if curvature <= 0:
                status = Status.NEGATIVE_CURVATURE
                if products == 1:  # nothing solved yet: v itself is the best there is
                    solution = v
                break
            length = squared / curvature
            solution = pytree.add(solution, direction, length)
            residual = pytree.add(residual, image, -length)
            previous, squared = squared, float(pytree.dot(residual, residual))
            direction = pytree.add(residual, direction, squared / previous)
            norms.append(math.sqrt(squared) if squared >= 0 else math.nan)
        if status is Status.TRUNCATED and norms[-1] <= self.tolerance * start:
            status = Status.CONVERGED
        if not all(map(math.isfinite, norms)):
            status = Status.NON_FINITE
        # The recurrence gives the residual of the damped system; that of H itself is known only without damping.
        solved = start > 0 and self.damping == 0 and len(norms) > 1
        known = norms[-1] / start if solved else None
        return Solution.judged(solution, norms, known, products, status)
