"""The Neumann series (Lorraine et al., 2020), which is the paper's."""

import dataclasses
from collections.abc import Sequence

import torch

from madao.hypergrad import vector
from madao.hypergrad.stats import Solution, Status, series_status
from madao.hypergrad.vector import Operator, Vector


@dataclasses.dataclass(frozen=True)
class Neumann:
    """q = α Σ_{j=0..J} (I − αH)^j v.

    Converges to H⁻¹ v where every eigenvalue λ of H lies in (0, 2/α), with error (1 − αλ)^{J+1} along each. J products.

    Attributes:
        steps: J.
        scale: α.
    """

    steps: int = 5
    scale: float = 1e-3

    def __post_init__(self) -> None:
        if self.steps < 0:
            raise ValueError(f"steps must be at least 0, got {self.steps}")
        if not self.scale > 0:
            raise ValueError(f"scale must be above 0, got {self.scale}")

    def solve(self, operator: Operator, v: Vector) -> Solution:
        """Sum the series."""
        term, partial_sum = v, v
        norms = [vector.norm(term)]
        for _ in range(self.steps):
            term = vector.add(term, operator(term), -self.scale)
            partial_sum = vector.add(partial_sum, term)
            norms.append(vector.norm(term))
        return Solution(vector.scaled(partial_sum, self.scale), torch.stack(norms), None, self.steps, _judge)


def _judge(norms: Sequence[float], residual: float | None) -> Status:
    # v − H q is the first term left out, and no longer than the last one where the series converges.
    return series_status(norms, norms[-1] / norms[0] if norms[0] > 0 else 0.0)
