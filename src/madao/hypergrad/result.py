"""Whether a hypergradient can be trusted, and what to do where it cannot."""

import dataclasses
import enum
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from madao.hypergrad.pytree import Vector

TOLERANCE = 1e-3
"""The relative residual under which a system counts as solved."""

RUNAWAY = 10.0
"""The relative residual above which a solution counts as diverging."""

GROWTH = 1.1
"""How much longer than its first term a series may grow before it counts as diverging."""


class Status(enum.Enum):
    """How the linear system H q = v was left."""

    CONVERGED = "the linear system is solved to the tolerance"
    TRUNCATED = (
        "the system is not solved to the tolerance, as is usual with few steps or none: more steps or a higher rank, "
        "or for Neumann a larger scale, come closer"
    )
    DIVERGING = (
        "the result grows without bound: the scale or learning rate times the largest curvature exceeds 2, or the "
        "curvature is negative; use a smaller scale, a tenth say, or ConjugateGradient or Nystrom with more damping"
    )
    NEGATIVE_CURVATURE = (
        "the inner loss curves downwards along a search direction, so it is no minimum there: the solver kept what it "
        "had; use damping above that curvature, or train the inner problem further"
    )
    NON_FINITE = (
        "there are infinities or NaN in the gradient or in a product: check the losses, lower the scale, and use "
        "float32 where it is half precision"
    )

    @property
    def usable(self) -> bool:
        """Whether the result may update anything."""
        return self not in (Status.DIVERGING, Status.NON_FINITE)


@dataclasses.dataclass(frozen=True, eq=False)
class Solution:
    """What a solver returns: q ≈ H⁻¹ v. Its numbers stay on the device until `status` is asked for.

    Attributes:
        vector: q.
        norms: Length of each term of the series, or of the residual at each iteration, from ‖v‖ on; float64.
        residual: ‖v − H q‖ / ‖v‖ as far as the solver knows it, else None.
        products: How many Hessian-vector products it took.
        judge: From norms and residual, read, to how the system was left.
        checked: Whether `residual` is exact, so that one more product would only repeat it.
        carry: What `Solver.update` needs of this call.
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
        """Of a solver that had to read its numbers on the way."""
        device = vector[0].device
        known = None if residual is None else torch.tensor(residual, dtype=torch.float64, device=device)
        return cls(vector, torch.tensor(norms, dtype=torch.float64, device=device), known, products, lambda *_: status)

    @property
    def status(self) -> Status:
        """How the system was left. The host waits for it."""
        return self.judge(self.norms.tolist(), None if self.residual is None else float(self.residual))


def measured_status(believed: Status, residual: float, products: int) -> Status:
    """The status once the residual has been measured, which counts more than what the solver believed."""
    if believed not in (Status.CONVERGED, Status.TRUNCATED):
        return believed
    # So large a residual comes of a nearly singular system. Without products nothing was solved: any is normal.
    if products and not residual <= RUNAWAY:
        return Status.DIVERGING
    return Status.CONVERGED if residual <= TOLERANCE else Status.TRUNCATED


@dataclasses.dataclass(frozen=True)
class Stats:
    """The health of one hypergradient.

    Attributes:
        status: How the linear system was left; `status.value` says what to do.
        outer_loss: g(θ).
        v_norm: ‖∇θ g‖.
        q_norm: ‖q‖.
        residual: ‖v − H q‖ / ‖v‖; None where it was not measured (`hypergradient(check=True)` measures it).
        term_norms: Length of each term of the series, or of the residual at each iteration.
        grad_norm: ‖∂g/∂φ‖.
        products: How many Hessian-vector products were spent.
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
    """The status of a series from the lengths of its terms."""
    if not all(map(math.isfinite, norms)):
        return Status.NON_FINITE
    if len(norms) > 1 and norms[-1] > GROWTH * norms[0] and norms[-1] >= norms[-2]:
        return Status.DIVERGING
    return Status.CONVERGED if residual is not None and residual <= TOLERANCE else Status.TRUNCATED
