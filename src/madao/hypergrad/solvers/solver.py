"""The interface of solvers."""

import dataclasses
from collections.abc import Callable
from typing import Any, ClassVar

import torch

from madao.hypergrad.flat_problem import FlatProblem
from madao.hypergrad.pytree import Operator, Vector
from madao.hypergrad.result import Solution, Stats


def _absent(*_: Any) -> Any:
    raise ValueError("the solver needs a derivative that the System was made without")


@dataclasses.dataclass(frozen=True, eq=False)
class System:
    """The linear system H q = v, and the other derivatives of the inner loss that a solver may use.

    The inner loss is `Problem.curvature` where that is given. Each derivative is computed when it is first called.

    Attributes:
        v: ∇θ g, the gradient of the outer loss.
        hessian: Multiplies a vector by H, the Hessian of the inner loss.
        gauss_newton: Multiplies a vector by the Gauss-Newton matrix of the inner loss.
        gradient: Returns ∇θ f, the gradient of the inner loss.
    """

    v: Vector
    hessian: Operator = _absent
    gauss_newton: Operator = _absent
    gradient: Callable[[], Vector] = _absent


@dataclasses.dataclass(frozen=True, eq=False)
class Path:
    """The derivatives of the outer loss through a path of inner steps."""

    gradient: Vector  # dg(θ_T)/d inputs
    outer_gradient: Vector  # ∇θ g at θ_T
    start_gradient: Vector  # dg(θ_T)/dθ_0, short where the steps contract and θ_0 is forgotten
    outer_loss: float  # g(θ_T)
    inner_norms: tuple[float, ...]  # ‖∇f‖ before each step


class Solver:
    """An approximation of q = H⁻¹ v. Subclasses are frozen dataclasses and override `solve`.

    A solver is immutable. If it remembers something from one outer step to the next, that is its state, and its owner
    passes the state through `prepare`, `solve` and `update` at each step:

        state = solver.prepare(state, params, check)
        solution = solver.solve(system, state)
        state = solver.update(state, solution.carry, stats)

    Attributes:
        needs_independent_draw: Whether the system must come from other draws than those the estimator scores.
        capturable: Whether a CUDA graph may hold its steps when a batch is computed in microbatches. It may not if
            products keep memory for each microbatch from one product to the next.
        checkable: Whether one more product measures the residual of its solution.
        differentiates_path: Whether it overrides `differentiate` instead of `solve`.
        remembers: Whether it has a state.
    """

    needs_independent_draw: ClassVar[bool] = False
    capturable: ClassVar[bool] = False
    checkable: ClassVar[bool] = True
    differentiates_path: ClassVar[bool] = False
    remembers: ClassVar[bool] = False

    def solve(self, system: System, state: Any = None) -> Solution:
        """Approximate q = H⁻¹ v. `state` is the one that `prepare` returned; None for a call that remembers nothing."""
        raise NotImplementedError(f"{type(self).__name__} must override solve()")

    def differentiate(self, problem: FlatProblem) -> Path | None:
        """Differentiate the outer loss through a path of inner steps. By default None: the solver uses `solve`."""
        return None

    def prepare(self, state: Any, params: Any, check: bool) -> Any:
        """Return the state to pass to `solve`.

        Equal states and params of equal shapes must lead to the same operations: a CUDA graph is recorded for each. A
        state that is hashed by identity may be overwritten in place between calls.

        Args:
            state: The state after the last outer step, which may be another solver's; None before the first one.
            params: θ, in the form of `Problem.params`.
            check: Whether the residual of this call is measured.
        """
        return state if self.remembers else None

    def update(self, state: Any, carry: Any, stats: Stats) -> Any:
        """Return the state to keep after a call, from `Solution.carry` and the health of the hypergradient."""
        return state

    @property
    def num_remembered(self) -> int:
        """The number of training gradients that the state has room for."""
        return 0

    def remember(self, state: Any, gradient: Vector) -> None:
        """Add a training gradient to a state that `prepare` returned, as if an outer step had computed it.

        Args:
            state: The state, which is overwritten.
            gradient: ∇θ f.
        """
        raise NotImplementedError(f"{type(self).__name__} remembers no gradients")

    def state_dict(self, state: Any) -> dict[str, Any]:
        """Return what `load_state` needs to restore the state, by names that no other solver uses."""
        return {}

    def load_state(self, saved: dict[str, Any], device: torch.device) -> Any:
        """Restore the state from the dict of `state_dict`; None if the dict is empty."""
        return None

    def for_comparison(self) -> "Solver":
        """Return the solver with which two ways to compute the same gradient are compared on a few images."""
        return self
