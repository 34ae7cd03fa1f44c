"""The outer gradient without its part along the gradients of training: curvature without a second derivative."""

import dataclasses

import torch
from torch import Tensor

from madao.hypergrad import pytree
from madao.hypergrad.pytree import Vector
from madao.hypergrad.result import Solution, series_status

_PART = 2**18
"""Parameters at a time: all gradients unpacked at once would be many times as large as the model."""


@dataclasses.dataclass(frozen=True)
class Deflated:
    """q = α (I − G (GᵀG + λI)⁻¹ Gᵀ) v, the columns of G being the last m gradients of the inner loss, of unit length.

    In the midst of training v points mostly where the inner gradient points (a cosine of 0.98 is common): both losses
    want the same, and whatever makes an example hard makes its gradient long in that direction, useful or not. The
    implicit function theorem knows of no such part, as it holds where the inner gradient is zero; H⁻¹ takes it out,
    since curvature is largest along gradients. So does this, which is what (GGᵀ + λI)⁻¹ v is but for a factor, at the
    price of one gradient a call and no product. What is left is what training by itself does not achieve.

    Gradients of earlier calls are at other θ. Their signs change, the space they span hardly does; but the gradient at
    this θ matters most. An estimator that scores draws stays unbiased only if it is the gradient for other draws: give
    `Problem.curvature`, as `PolicyOptimizer` does. Earlier ones are remembered in bfloat16 where θ is in single
    precision or less: of noisy directions half the bytes say as much.

    Attributes:
        memory: m, the gradient of the call itself included.
        scale: α.
        damping: λ.
    """

    memory: int = 16
    scale: float = 1.0
    damping: float = 0.01

    def __post_init__(self) -> None:
        if self.memory < 1:
            raise ValueError(f"memory must be at least 1, got {self.memory}")
        for name, value in (("scale", self.scale), ("damping", self.damping)):
            if not value > 0:
                raise ValueError(f"{name} must be above 0, got {value}")

    def solve(self, v: Vector, gradient: Vector, recent: Tensor | None = None) -> Solution:
        """Take the part along the gradients out.

        Args:
            v: ∇θ g.
            gradient: ∇θ f, of `Problem.curvature`.
            recent: Gradients of earlier calls, as `remembered` has them, in any order.
        """
        target, newest = pytree.flat(v), pytree.flat(gradient)
        newest = newest / torch.linalg.vector_norm(newest).clamp(min=torch.finfo(newest.dtype).tiny)
        recent = self.nothing(v) if recent is None else recent
        parts = [slice(first, first + _PART) for first in range(0, len(target), _PART)]
        matrix = self.damping * torch.eye(self.memory, dtype=torch.float64, device=target.device)
        right = torch.zeros(self.memory, dtype=torch.float64, device=target.device)
        for part in parts:
            rows = torch.cat([newest[None, part], recent[:, part].to(newest.dtype)])
            matrix = matrix + rows @ rows.T  # exact in TF32 too, but for the newest row
            right = right + rows @ target[part]
        coefficients = solve_positive(matrix, right).to(target.dtype)
        for part in parts:
            target[part] -= coefficients[0] * newest[part] + coefficients[1:] @ recent[:, part].to(newest.dtype)
        q = pytree.shaped(target, v)
        lengths = torch.stack([pytree.norm(v), pytree.norm(q)])
        return Solution(pytree.scaled(q, self.scale), lengths, None, 0, series_status, newest.to(recent.dtype))

    def nothing(self, params: Vector) -> Tensor:
        """What is remembered before the first call, `[m − 1, number of parameters]`: zeros, which take nothing out."""
        kind = torch.float64 if params[0].dtype == torch.float64 else torch.bfloat16
        size = sum(part.numel() for part in params)
        return torch.zeros(self.memory - 1, size, dtype=kind, device=params[0].device)

    def remembered(self, recent: Tensor | None, newest: Tensor) -> Tensor:
        """The next call's `recent`: the newest before the others, the oldest forgotten."""
        recent = self.nothing((newest,)) if recent is None else recent
        return torch.cat([newest[None], recent])[: self.memory - 1]


def solve_positive(matrix: Tensor, right: Tensor) -> Tensor:
    """The solution of a small positive definite system, by elimination. The host does not wait for the device."""
    table = torch.cat([matrix, right.to(matrix.dtype)[:, None]], 1)
    count = len(matrix)
    for i in range(count):
        pivot = table[i] / table[i, i]
        table = table - table[:, i : i + 1] * pivot
        table[i] = pivot
    return table[:, count]
