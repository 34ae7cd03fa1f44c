"""The Neumann series (Lorraine et al., 2020), which is the paper's."""

import dataclasses
import math
from collections.abc import Sequence

import torch

from madao.hypergrad import pytree
from madao.hypergrad.pytree import Operator, Vector
from madao.hypergrad.result import Solution, Status, series_status

_MOST_POWERS = 8
"""The longest series that is summed by powers of H: at αH = 2, which is where it ceases to converge, the summands of
the next are 3⁹ times as long as what is left of their sum."""


@dataclasses.dataclass(frozen=True)
class Neumann:
    """q = α Σ_{j=0..J} (I − αH)^j v.

    Converges to H⁻¹ v where every eigenvalue λ of H lies in (0, 2/α), with error (1 − αλ)^{J+1} along each. J products.

    Attributes:
        steps: J.
        scale: α.
        tolerance: Part of q for which those who solve again and again, as `PolicyOptimizer` does, may leave out powers
            of H; 0 for none. See `PowerSeries`. No matter to `solve`, nor for more than 8 steps.
    """

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

    def solve(self, operator: Operator, v: Vector) -> Solution:
        """Sum the series."""
        term, partial_sum = v, v
        norms = [pytree.norm(term)]
        for _ in range(self.steps):
            term = pytree.add(term, operator(term), -self.scale)
            partial_sum = pytree.add(partial_sum, term)
            norms.append(pytree.norm(term))
        return Solution(pytree.scaled(partial_sum, self.scale), torch.stack(norms), None, self.steps, _judge)

    @property
    def shortens(self) -> bool:
        """Whether powers of H may be left out."""
        return self.tolerance > 0 and 1 <= self.steps <= _MOST_POWERS

    def needed(self, lengths: Sequence[float]) -> int | None:
        """How many products the tolerance asks for, by the lengths of all powers; None to sum the series itself."""
        enough = PowerSeries.enough(lengths, self.tolerance)
        return None if enough == self.steps else enough

    def powers(self, products: int) -> "PowerSeries":
        """The same series by powers of H, up to so many."""
        return PowerSeries(self.steps, self.scale, products)


@dataclasses.dataclass(frozen=True)
class PowerSeries:
    """The Neumann series by powers of H, the highest of which may be left out.

        α Σ_{j=0..J} (I − αH)^j v = α Σ_{k=0..J} C(J+1, k+1) (−αH)^k v

    Where αH is small a few powers, of which each costs a product, are as good as all. Where it is not the sum cancels,
    and `Neumann` is the way to it.

    Attributes:
        steps: J.
        scale: α.
        products: The highest power that is summed.
    """

    steps: int
    scale: float
    products: int

    def solve(self, operator: Operator, v: Vector) -> Solution:
        """Sum the powers. The norms are the lengths of summands over α. All powers and one more give the residual."""
        power, total = v, pytree.scaled(v, float(self.steps + 1))
        norms = [pytree.norm(total)]
        for k in range(1, self.products + 1):
            product = operator(power)
            del power  # each is as large as the model
            power = pytree.scaled(product, -self.scale)
            del product
            factor = math.comb(self.steps + 1, k + 1)
            total = pytree.add(total, power, factor)
            norms.append(factor * pytree.norm(power))
        del power
        q = pytree.scaled(total, self.scale)
        del total
        residual, products = None, self.products
        if self.products == self.steps:
            left = pytree.add(v, operator(q), -1.0)
            residual, products = pytree.norm(left) / pytree.norm(v).clamp(min=1e-300), products + 1
        return Solution(q, torch.stack(norms), residual, products, _judge_powers)

    @staticmethod
    def enough(lengths: Sequence[float], tolerance: float) -> int | None:
        """The fewest products after which what is left out is at most this part of q, by the triangle inequality.

        Args:
            lengths: Of all summands.
            tolerance: The part.

        Returns:
            None where the sum may cancel, so that none may be left out.
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
