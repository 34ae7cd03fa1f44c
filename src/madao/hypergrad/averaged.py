"""The outer gradient averaged over calls, in the place of one batch's."""

import dataclasses

from madao.hypergrad import vector
from madao.hypergrad.stats import Solution, series_status
from madao.hypergrad.vector import Operator, Vector


@dataclasses.dataclass(frozen=True)
class Averaged:
    """q ← β q + (1 − β) α v: `Identity` without the noise of a single validation batch. No products.

    θ moves between calls, so that what is averaged is also a little old: by about 1 / (1 − β) calls.

    Attributes:
        scale: α.
        decay: β.
    """

    scale: float = 1.0
    decay: float = 0.9

    def __post_init__(self) -> None:
        if not self.scale > 0:
            raise ValueError(f"scale must be above 0, got {self.scale}")
        if not 0 <= self.decay < 1:
            raise ValueError(f"decay must be at least 0 and below 1, got {self.decay}")

    def solve(self, operator: Operator, v: Vector, start: Vector | None = None) -> Solution:
        """One step from `start`, by default all of the way; the operator is not used."""
        q = vector.scaled(v, self.scale)
        if start is not None:
            q = vector.add(vector.scaled(start, self.decay), q, 1 - self.decay)
        return Solution(q, vector.norm(v).reshape(1), None, 0, series_status, carried=q)
