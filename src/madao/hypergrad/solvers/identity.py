"""The Hessian replaced by the identity: one inner step ahead."""

import dataclasses
from typing import ClassVar

from madao.hypergrad import pytree
from madao.hypergrad.result import Solution, series_status
from madao.hypergrad.solvers.solver import Solver, System


@dataclasses.dataclass(frozen=True)
class Identity(Solver):
    """A solver with q = αv, without products: how one inner step of length α, the `scale`, changes the outer loss."""

    capturable: ClassVar[bool] = True

    scale: float = 1.0

    def __post_init__(self) -> None:
        if not self.scale > 0:
            raise ValueError(f"scale must be above 0, got {self.scale}")

    def solve(self, system: System, state: None = None) -> Solution:
        """Return αv."""
        norms = pytree.norm(system.v).reshape(1)
        return Solution(pytree.scaled(system.v, self.scale), norms, None, 0, series_status)
