"""The health of a hypergradient."""

import dataclasses
import enum
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from madao.hypergrad.pytree import Vector

TOLERANCE = 1e-3
"""The relative residual below which a system counts as solved."""
RUNAWAY = 10.0
"""The relative residual above which a solution counts as diverging."""
GROWTH = 1.1
"""The ratio of a term to the first term above which a series counts as diverging."""


class Status(enum.Enum):
    """The outcome of solving H q = v. Its value is a sentence with the remedy."""

    CONVERGED = "the linear system is solved to the tolerance"
    DIRECT = "the solver computed its approximation directly: there is no series that more steps would continue"
    TRUNCATED = (
        "the system is not solved to the tolerance, as is usual with few steps or none: more steps or a higher rank, "
        "or for Neumann a larger scale, come closer"
    )
    DIVERGING = (
        "the result grows without bound: the scale or learning rate times the largest curvature exceeds 2, or the "
        "curvature is negative; use a smaller scale, a tenth say, or ConjugateGradient or Nystrom with more damping"
    )
    NEGATIVE_CURVATURE = (
        "the inner loss curves downwards along a search direction, so θ is not a minimum: the solver kept the solution "
        "so far; use damping above that curvature, or train the inner problem further"
    )
    NON_FINITE = (
        "the gradient or a product contains infinities or NaN: check the losses, lower the scale, and use float32 "
        "instead of half precision"
    )

    @property
    def usable(self) -> bool:
        """Whether the result may update anything."""
        return self not in (Status.DIVERGING, Status.NON_FINITE)


@dataclasses.dataclass(frozen=True, eq=False)
class Solution:
    """A solver's result, q ≈ H⁻¹ v. Its numbers stay on the device until `status` is read.

    Attributes:
        vector: q.
        norms: The length of each term of the series, or of the residual at each iteration, beginning with ‖v‖; float64.
        residual: ‖v − H q‖ / ‖v‖, if the solver knows it.
        products: How many Hessian-vector products were spent.
        judge: A function from norms and residual, as numbers, to the status.
        checked: Whether `residual` is exact, so that one more product would only repeat it.
        carry: The value that `Solver.update` receives.
    """

    vector: Vector
    norms: Tensor
    residual: Tensor | None
    products: int
    judge: Callable[[Sequence[float], float | None], Status]
    checked: bool = False
    carry: Any = None

    @classmethod
    def judged(
        cls, vector: Vector, norms: Sequence[float], residual: float | None, products: int, status: Status
    ) -> "Solution":
        """Return the solution of a solver that has read its numbers already."""
        device = vector[0].device
        known = None if residual is None else torch.tensor(residual, dtype=torch.float64, device=device)
        return cls(vector, torch.tensor(norms, dtype=torch.float64, device=device), known, products, lambda *_: status)

    @property
    def status(self) -> Status:
        """The outcome. The host waits for the device."""
        return self.judge(self.norms.tolist(), None if self.residual is None else float(self.residual))


def direct_status(norms: Sequence[float], residual: float | None) -> Status:
    """Return the status of a solver without a series, by the lengths of v and q."""
    return Status.DIRECT if all(map(math.isfinite, norms)) else Status.NON_FINITE


def measured_status(believed: Status, residual: float, products: int) -> Status:
    """Return the status by a measured residual, which overrides whether the solver reported convergence."""
    if believed not in (Status.CONVERGED, Status.TRUNCATED):
        return believed
    # So large a residual means a nearly singular system. Without products nothing was solved, and any is normal.
    if products and not residual <= RUNAWAY:
        return Status.DIVERGING
    return Status.CONVERGED if residual <= TOLERANCE else Status.TRUNCATED


@dataclasses.dataclass(frozen=True)
class Stats:
    """The health of one hypergradient.

    Attributes:
        status: The outcome of the solver. `status.value` is a sentence with the remedy.
        outer_loss: g(θ).
        v_norm: ‖∇θ g‖.
        q_norm: ‖q‖.
        residual: ‖v − H q‖ / ‖v‖; None if it was not measured (`hypergradient(check=True)` measures it).
        term_norms: The length of each term of the series, or of the residual at each iteration.
        grad_norm: ‖∂g/∂φ‖.
        products: The number of Hessian-vector products.
    """

    status: Status
    outer_loss: float
    v_norm: float
    q_norm: float
    residual: float | None
    term_norms: tuple[float, ...]
    grad_norm: float
    products: int

    @property
    def usable(self) -> bool:
        """Whether the gradient may update anything."""
        return self.status.usable


def series_status(norms: Sequence[float], residual: float | None) -> Status:
    """Return the status of a series, by the lengths of its terms."""
    if not all(map(math.isfinite, norms)):
        return Status.NON_FINITE
    if len(norms) > 1 and norms[-1] > GROWTH * norms[0] and norms[-1] >= norms[-2]:
        return Status.DIVERGING
    return Status.CONVERGED if residual is not None and residual <= TOLERANCE else Status.TRUNCATED
