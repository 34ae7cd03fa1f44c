"""The Neumann series (Lorraine et al., 2020), the solver of the MADAO paper."""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any, ClassVar

import torch

from madao.hypergrad import pytree
from madao.hypergrad.result import Solution, Stats, Status, series_status
from madao.hypergrad.solvers.solver import Solver, System

_MOST_POWERS = 8
"""The longest series that is summed by powers of H. At αH = 2, where the series ceases to converge, the summands of the
next longer one are 3⁹ times as long as their sum, and single precision would not be enough."""


@dataclasses.dataclass(frozen=True)
class Neumann(Solver):
    """A solver that sums q = α Σ_{j=0..J} (I − αH)^j v. It takes J products.

    The sum converges to H⁻¹ v if every eigenvalue λ of H lies in (0, 2/α). The error along each is (1 − αλ)^{J+1}.

    Attributes:
        steps: J.
        scale: α.
        tolerance: The relative error of q up to which `PolicyOptimizer` may leave out high powers of H; 0 to leave out
            none. `prepare` and `update` choose the powers. Without effect on a single call and for more than 8 steps.
    """

    remembers: ClassVar[bool] = True

    steps: int = 5
    scale: float = 1e-3
    tolerance: float = 0.0

    def __post_init__(self) -> None:
        if self.steps < 0:
            raise ValueError(f"steps must be at least 0, got {self.steps}")
        if not self.scale > 0:
            raise ValueError(f"scale must be above 0, got {self.scale}")
        if not 0 <= self.tolerance < 1:
            raise ValueError(f"tolerance must be at least 0 and below 1, got {self.tolerance}")

    def solve(self, system: System, state: int | None = None) -> Solution:
        """Sum the series, or with a state its powers of H up to this one.

            α Σ_{j=0..J} (I − αH)^j v = α Σ_{k=0..J} C(J+1, k+1) (−αH)^k v

        Where αH is small, the sum over the first few k is as good as the whole, and each k costs a product. Where αH is
        large, the right-hand side cancels, and the left-hand side must be used.
        """
        if state is not None:
            return self._by_powers(system, state)
        term, partial_sum = system.v, system.v
        norms = [pytree.norm(term)]
        for _ in range(self.steps):
            term = pytree.add(term, system.hessian(term), -self.scale)
            partial_sum = pytree.add(partial_sum, term)
            norms.append(pytree.norm(term))
        return Solution(pytree.scaled(partial_sum, self.scale), torch.stack(norms), None, self.steps, _judge)

    def _by_powers(self, system: System, most: int) -> Solution:
        """Sum the powers up to H^most. All of them and one more product give the residual.

        The norms of the solution are the lengths of the summands, divided by α.
        """
        power, total = system.v, pytree.scaled(system.v, float(self.steps + 1))
        norms = [pytree.norm(total)]
        for k in range(1, most + 1):
            product = system.hessian(power)
            del power  # each is as large as the model
            power = pytree.scaled(product, -self.scale)
            del product
            factor = math.comb(self.steps + 1, k + 1)
            total = pytree.add(total, power, factor)
            norms.append(factor * pytree.norm(power))
        del power
        q = pytree.scaled(total, self.scale)
        del total
        if most < self.steps:
            return Solution(q, torch.stack(norms), None, most, _judge_powers)
        left = pytree.add(system.v, system.hessian(q), -1.0)
        residual = pytree.norm(left) / pytree.norm(system.v).clamp(min=1e-300)
        return Solution(q, torch.stack(norms), residual, most + 1, _judge_powers, checked=True)

    @property
    def shortens(self) -> bool:
        """Whether powers of H may be left out."""
        return self.tolerance > 0 and 1 <= self.steps <= _MOST_POWERS

    def prepare(self, state: Any, params: Any, check: bool) -> int | None:
        """Return the highest power of H to sum: all of them at a check, which measures how many are needed."""
        if check and self.shortens:
            return self.steps
        return state if isinstance(state, int) else None

    def update(self, state: int | None, carry: None, stats: Stats) -> int | None:
        """Return the highest power of H that the tolerance requires; None if the series itself must be summed."""
        if state != self.steps:
            return state
        enough = needed_powers(stats.term_norms, self.tolerance)
        return None if enough == self.steps else enough

    def state_dict(self, state: int | None) -> dict[str, Any]:
        """Return the highest power under the name `products`."""
        return {"products": state}

    def load_state(self, saved: dict[str, Any], device: torch.device) -> int | None:
        """Restore the highest power, if it is known."""
        products: int | None = saved.get("products")
        return products


def needed_powers(lengths: Sequence[float], tolerance: float) -> int | None:
    """Return how many products bring the rest of the summands below a part of q, by the triangle inequality.

    None if the sum may cancel, so that no power may be left out.
    """
    least = lengths[0] - sum(lengths[1:])  # the sum is no shorter
    if not least > 0:
        return None
    return next(k for k in range(len(lengths)) if sum(lengths[k + 1 :]) <= tolerance * least)


def _judge(norms: Sequence[float], residual: float | None) -> Status:
    # v − H q is the first term left out, and no longer than the last one where the series converges.
    return series_status(norms, norms[-1] / norms[0] if norms[0] > 0 else 0.0)


def _judge_powers(norms: Sequence[float], residual: float | None) -> Status:
    # Of some powers only, a summand that was small has to be small.
    return series_status((norms[0], norms[-1]) if residual is None else (1.0, residual), residual)
