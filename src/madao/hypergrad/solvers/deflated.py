"""The outer gradient without its part along training gradients: curvature without a second derivative."""

import dataclasses
from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from madao.hypergrad import pytree
from madao.hypergrad.pytree import Vector
from madao.hypergrad.result import Solution, Stats, direct_status
from madao.hypergrad.solvers.gradient_history import GradientHistory
from madao.hypergrad.solvers.solver import Solver, System

_PART = 2**18
"""Parameters processed at a time: all unpacked gradients together would be many times as large as the model."""


@dataclasses.dataclass(frozen=True)
class Deflated(Solver):
    """A solver that removes from v its part along recent training gradients.

        q = α (I − G (GᵀG + λI)⁻¹ Gᵀ) v

    The columns of G are the last m gradients of the inner loss, scaled to unit length. Up to a factor, q is
    (GGᵀ + λI)⁻¹ v. A call costs one gradient and no product.

    During training, v points mostly along the inner gradient: a cosine of 0.98 is common. Both losses fall in that
    direction, and a hard example has a long gradient along it whether or not it is useful. At a minimum of the inner
    loss there is no such direction. Away from a minimum, H⁻¹ shrinks it, since curvature is largest along gradients;
    this solver removes it directly, and keeps the directions that training does not follow anyway.

    Gradients of earlier calls were computed at other θ. Their signs change, but the space that they span hardly does.
    The gradient at the present θ matters most. If an estimator scores draws, this gradient must come from other draws,
    or the estimate is biased: set `Problem.curvature`, as `PolicyOptimizer` does. Earlier gradients are stored in
    bfloat16 unless θ is in float64: they are noisy directions, for which half the bytes suffice.

    Attributes:
        memory: m, the number of gradients, including that of the call.
        scale: α.
        damping: λ.
    """

    needs_independent_draw: ClassVar[bool] = True
    capturable: ClassVar[bool] = True
    checkable: ClassVar[bool] = False
    remembers: ClassVar[bool] = True

    memory: int = 16
    scale: float = 1.0
    damping: float = 0.01

    def __post_init__(self) -> None:
        if self.memory < 1:
            raise ValueError(f"memory must be at least 1, got {self.memory}")
        for name, value in (("scale", self.scale), ("damping", self.damping)):
            if not value > 0:
                raise ValueError(f"{name} must be above 0, got {value}")

    def solve(self, system: System, state: GradientHistory | None = None) -> Solution:
        """Remove from v its part along the gradient of this call and those of earlier calls."""
        v = system.v
        target, newest = pytree.flat(v), _unit(system.gradient())
        recent = (self._empty(v) if state is None else state).rows
        if recent.shape != (self.memory - 1, len(target)):
            raise ValueError(
                f"the state of {self!r} for these params has the shape {[self.memory - 1, len(target)]}, got "
                f"{list(recent.shape)}; pass the state that the call before returned"
            )
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
        return Solution(pytree.scaled(q, self.scale), lengths, None, 0, direct_status, carry=newest.to(recent.dtype))

    def prepare(self, state: Any, params: Any, check: bool) -> GradientHistory:
        """Return the history, or an empty one if it belongs to another solver or to other parameters."""
        owner = [repr(self), *(params if isinstance(params, dict) else ())]
        if isinstance(state, GradientHistory) and state.owner == owner:
            return state
        return self._empty(pytree.flatten(params, "params")[0], owner)

    def update(self, state: GradientHistory | None, carry: Tensor, stats: Stats) -> GradientHistory | None:
        """Add the gradient of the call to the history, unless its result is unusable."""
        if stats.usable:
            state = self._empty((carry,)) if state is None else state
            state.add(carry)
        return state

    @property
    def num_remembered(self) -> int:
        """The number of gradients of earlier calls."""
        return self.memory - 1

    def remember(self, state: GradientHistory, gradient: Vector) -> None:
        """Add a gradient to the history."""
        state.add(_unit(gradient))

    def state_dict(self, state: GradientHistory | None) -> dict[str, Any]:
        """Return the history under the name `recent`."""
        return {"recent": None if state is None else state.state_dict()}

    def load_state(self, saved: dict[str, Any], device: torch.device) -> GradientHistory | None:
        """Restore the history, if there is one."""
        recent = saved.get("recent")
        return None if recent is None else GradientHistory.restored(recent, device)

    def _empty(self, params: Vector, owner: Sequence[str] = ()) -> GradientHistory:
        return GradientHistory.empty(self.memory - 1, params, list(owner))


def _unit(gradient: Vector) -> Tensor:
    """Return a gradient at unit length, in one tensor."""
    newest = pytree.flat(gradient)
    unit: Tensor = newest / torch.linalg.vector_norm(newest).clamp(min=torch.finfo(newest.dtype).tiny)
    return unit


def solve_positive(matrix: Tensor, right: Tensor) -> Tensor:
    """Solve a small positive definite system by elimination. The host does not wait for the device."""
    table = torch.cat([matrix, right.to(matrix.dtype)[:, None]], 1)
    count = len(matrix)
    for i in range(count):
        pivot = table[i] / table[i, i]
        table = table - table[:, i : i + 1] * pivot
        table[i] = pivot
    return table[:, count]
