"""The Nyström approximation of the inverse Hessian (Hataya & Yamada, 2023)."""

import dataclasses
import math

import torch
from torch import Tensor

from madao.hypergrad import pytree
from madao.hypergrad.result import Solution, Status
from madao.hypergrad.solvers.solver import Solver, System


@dataclasses.dataclass(frozen=True)
class Nystrom(Solver):
    """A solver with q = (H_k + damping · I)⁻¹ v, where H_k has rank k and comes from k random directions.

    Ω holds the directions, which are orthonormal. With C = HΩ and W = ΩᵀHΩ, H_k = C W⁺ Cᵀ, which equals H if H has rank
    at most k. The solver takes k products, which do not depend on each other, and the memory of k vectors. The part of
    v outside the range of H_k is divided by the damping.
    """

    rank: int = 10
    damping: float = 1e-2
    seed: int = 0

    def __post_init__(self) -> None:
        if self.rank < 1:
            raise ValueError(f"rank must be at least 1, got {self.rank}")
        if not self.damping > 0:
            raise ValueError(f"damping must be above 0, got {self.damping}")

    def solve(self, system: System, state: None = None) -> Solution:
        """Sketch H, then solve by the Woodbury identity in the k-dimensional space of its columns."""
        v = system.v
        flat = pytree.flat(v).double()
        rank = min(self.rank, len(flat))
        generator = torch.Generator(flat.device).manual_seed(self.seed)
        directions = torch.randn(len(flat), rank, generator=generator, device=flat.device, dtype=torch.float64)
        directions = torch.linalg.qr(directions).Q
        images = [system.hessian(pytree.shaped(column, v)) for column in directions.T]
        columns = torch.stack([pytree.flat(image).double() for image in images], dim=1)
        core = directions.T @ columns
        core = (core + core.T) / 2
        if not (torch.isfinite(columns).all() and torch.isfinite(flat).all()):
            unknown = torch.full_like(flat, math.nan)
            return Solution.judged(pytree.shaped(unknown, v), (float(flat.norm()),), None, rank, Status.NON_FINITE)
        values, vectors = torch.linalg.eigh(core)
        q = _woodbury(columns, values, vectors, flat, self.damping)
        # Near −damping the damped system is nearly singular, or worse.
        status = Status.DIVERGING if values[0] <= -self.damping / 2 else Status.TRUNCATED
        return Solution.judged(pytree.shaped(q, v), (float(flat.norm()),), None, rank, status)


def _woodbury(columns: Tensor, values: Tensor, vectors: Tensor, v: Tensor, damping: float) -> Tensor:
    """Return (C W⁺ Cᵀ + ρI)⁻¹ v by the eigenvectors of W, without those of zero curvature."""
    kept = values.abs() > 1e-10 * values.abs().max()
    factor = columns @ vectors[:, kept]  # H_k = F diag(1/λ) Fᵀ
    inner = damping * torch.diag(values[kept]) + factor.T @ factor
    weights: Tensor = torch.linalg.lstsq(inner, (factor.T @ v)[:, None]).solution[:, 0]
    solution: Tensor = (v - factor @ weights) / damping
    return solution
