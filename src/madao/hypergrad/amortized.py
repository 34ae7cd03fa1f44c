"""One gradient step a call on the linear system, carried on from call to call (Dagréou et al., 2022)."""

import dataclasses
from collections.abc import Sequence

import torch

from madao.hypergrad import vector
from madao.hypergrad.identity import Identity
from madao.hypergrad.stats import Solution, Status, series_status
from madao.hypergrad.vector import Operator, Vector

RUNAWAY = 1e3
"""The residual, relative to ‖v‖, above which the solution counts as diverging.

v and H are of another batch at each call, and v shrinks as training goes on, so that ten times ‖v‖ is usual; what
really grows passes any bound in a few calls."""


@dataclasses.dataclass(frozen=True)
class Amortized:
    """q ← q + α (v − (H + λI) q): one product a call, towards (H + λI)⁻¹ v as calls go by.

    α is `scale`, or ‖q‖ / 2‖(H + λI) q‖ where that is less: the curvature grows as a network is trained, and a step
    that was short enough becomes too long; what then grows in q is what it grows along, and shortens the step.

    θ and φ move slowly, so the last solution is nearly the next one. What a few steps from zero cannot reach, many
    calls do: directions of curvature c are solved after about 1 / αc calls, and those flatter than λ are left alone.
    The noise of validation and training batches averages out on the way. Without a start it is `Identity(α)`.

    Attributes:
        scale: The longest α; the inner learning rate is a good start.
        damping: λ, one over the horizon (learning rate times steps) that is looked ahead.
    """

    scale: float = 0.1
    damping: float = 0.01

    def __post_init__(self) -> None:
        if not self.scale > 0:
            raise ValueError(f"scale must be above 0, got {self.scale}")
        if not self.damping >= 0:
            raise ValueError(f"damping must be at least 0, got {self.damping}")

    def solve(self, operator: Operator, v: Vector, start: Vector | None = None) -> Solution:
        """One step from `start`, by default zero."""
        if start is None:
            first = Identity(self.scale).solve(operator, v)
            return dataclasses.replace(first, carried=first.vector)
        applied = vector.add(operator(start), start, self.damping)
        left = vector.add(v, applied, -1.0)
        curvature = vector.norm(applied) / vector.norm(start).clamp(min=1e-30)
        step = (0.5 / curvature.clamp(min=1e-30)).clamp(max=self.scale)
        q = vector.add(start, vector.scaled(left, step))
        norms = torch.stack([vector.norm(v), vector.norm(left)])
        return Solution(q, norms, norms[1] / norms[0].clamp(min=1e-300), 1, _judge, carried=q)


def _judge(norms: Sequence[float], residual: float | None) -> Status:
    status = series_status(norms[1:], residual)
    runaway = status is Status.TRUNCATED and residual is not None and residual > RUNAWAY
    return Status.DIVERGING if runaway else status
