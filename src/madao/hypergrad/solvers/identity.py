"""The Hessian taken as the identity: one step of gradient descent ahead."""

import dataclasses

from madao.hypergrad import pytree
from madao.hypergrad.pytree import Operator, Vector
from madao.hypergrad.result import Solution, series_status


@dataclasses.dataclass(frozen=True)
class Identity:
    """q = αv: how the outer loss changes by one inner step of length α. No products.

    Attributes:
        scale: α.
    """

    scale: float = 1.0

    def __post_init__(self) -> None:
        if not self.scale > 0:
            raise ValueError(f"scale must be above 0, got {self.scale}")

    def solve(self, operator: Operator, v: Vector) -> Solution:
        """Scale v; the operator is not used."""
        return Solution(pytree.scaled(v, self.scale), pytree.norm(v).reshape(1), None, 0, series_status)
