"""The gradient of an outer loss through the solution of an inner problem."""

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from madao.hypergrad import pytree
from madao.hypergrad.autodiff.products import ForwardOverReverse, SecondOrder
from madao.hypergrad.estimators.estimator import Estimator
from madao.hypergrad.estimators.relaxed import Relaxed
from madao.hypergrad.flat_problem import FlatProblem
from madao.hypergrad.problem import Problem
from madao.hypergrad.pytree import Vector
from madao.hypergrad.result import RUNAWAY, TOLERANCE, Stats, Status, measured_status, series_status
from madao.hypergrad.solvers.neumann import Neumann
from madao.hypergrad.solvers.solver import Path, Solver, System

Judge = Callable[[Sequence[float], float | None], Status]


@dataclasses.dataclass(frozen=True, eq=False)
class Hypergradient:
    """∂g/∂φ and its health.

    Attributes:
        grads: The gradient, in the form of `Problem.hyper`.
        stats: The health of the result.
        solution: q, in the form of `Problem.params`; None for `Unrolled`.
        state: The state to pass to the next call; None for a solver that remembers nothing.
    """

    grads: Any
    stats: Stats
    solution: Any = None
    state: Any = None


@dataclasses.dataclass(frozen=True, eq=False)
class PendingHypergradient:
    """A hypergradient whose numbers are still on the device, so that the host has not waited.

    Attributes:
        grads: The gradient, flat.
        solution: q, flat; None for `Unrolled`, and without `keep`.
        carry: `Solution.carry`, for `Solver.update`.
        numbers: g, ‖v‖, ‖∂g/∂φ‖, ‖q‖ and the residual (NaN if there is none), then the solver's norms; float64.
        solved: Whether q exists.
        measured: Whether the residual exists.
        judge: A function from the solver's norms and the residual to the status.
        products: How many Hessian-vector products were spent.
    """

    grads: Vector
    solution: Vector | None
    carry: Any
    numbers: Tensor
    solved: bool
    measured: bool
    judge: Judge
    products: int

    def read(self) -> Stats:
        """Return the health of the result. The host waits once."""
        outer_loss, v_norm, grad_norm, q_norm, residual, *norms = self.numbers.tolist()
        known = residual if self.measured else None
        lengths = (outer_loss, v_norm, grad_norm, q_norm) if self.solved else (outer_loss, v_norm, grad_norm)
        finite = all(map(math.isfinite, (*lengths, *norms)))
        status = self.judge(norms, known) if finite else Status.NON_FINITE
        return Stats(status, outer_loss, v_norm, q_norm, known, tuple(norms), grad_norm, self.products)


def hypergradient(
    problem: Problem,
    solver: Solver | None = None,
    hvp: SecondOrder | None = None,
    estimator: Estimator | None = None,
    check: bool = True,
    state: Any = None,
) -> Hypergradient:
    """Return ∂g/∂φ by the implicit function theorem.

        v = ∇θ g(θ)        q ≈ H⁻¹ v, H = ∇²θ f        ∂g/∂φ = ∂g/∂φ|θ − ∂/∂φ ⟨q, ∇θ f(θ, φ)⟩

    Neither parameters nor their `.grad` are written.

    Args:
        problem: The inner and the outer problem.
        solver: How H⁻¹ v is approximated: `Neumann` (the default), `ConjugateGradient`, `Nystrom` or `Identity`.
            `GaussNewton` uses another matrix for H, `Deflated` uses gradients in place of H, and `Unrolled`
            differentiates through inner steps.
        hvp: How products with H are computed: `ForwardOverReverse` (the default), `DoubleBackward`,
            `FiniteDifference` or `Traced`.
        estimator: How q becomes a gradient in φ: `Relaxed` (the default) or `Influence`.
        check: Whether one more product is spent to measure the residual ‖v − H q‖ / ‖v‖. `Deflated` has no residual;
            `GaussNewton` always reports the residual of its damped system.
        state: The `state` of the result before, for a solver that remembers. It is overwritten.
    """
    solver = Neumann() if solver is None else solver
    if state is not None and not solver.remembers:
        raise ValueError(f"{solver!r} has no state to go on from; leave `state` out")
    found = pending_hypergradient(problem, solver, hvp, estimator, check, state)
    solution = None
    if found.solution is not None:
        solution = pytree.flatten(problem.params, "params")[1](found.solution)
    grads = pytree.flatten(problem.hyper, "hyper")[1](found.grads)
    stats = found.read()
    return Hypergradient(grads, stats, solution, solver.update(state, found.carry, stats))


def pending_hypergradient(
    problem: Problem,
    solver: Solver | None = None,
    hvp: SecondOrder | None = None,
    estimator: Estimator | None = None,
    check: bool = True,
    state: Any = None,
    keep: bool = True,
) -> PendingHypergradient:
    """Return the hypergradient without waiting for its numbers, so that a CUDA graph can hold the computation.

    `ConjugateGradient`, `Nystrom` and `Unrolled` wait nevertheless. The state is read and not updated.

    Args:
        problem: As for `hypergradient`.
        solver: As for `hypergradient`.
        hvp: As for `hypergradient`.
        estimator: As for `hypergradient`.
        check: As for `hypergradient`.
        state: The solver's state, as `Solver.prepare` returns it.
        keep: Whether the result holds q, which is as large as the parameters.
    """
    solver = Neumann() if solver is None else solver
    second_order = ForwardOverReverse() if hvp is None else hvp
    estimator = Relaxed() if estimator is None else estimator
    flat = FlatProblem.of(problem)
    if solver.differentiates_path and estimator.scores_draws:
        raise ValueError(f"{solver!r} differentiates the inputs; use the estimator Relaxed(), got {estimator!r}")
    path = solver.differentiate(flat)
    if path is not None:
        return _along_path(path, flat)
    # Every vector here is as large as the parameters, so each is deleted as soon as it has been used.
    outer_loss, v, direct = flat.gradient(flat.outer, second_order, direct=True)
    system = System(
        v,
        flat.curvature_operator(second_order.products),
        flat.curvature_operator(second_order.gauss_newton),
        functools.partial(flat.curvature_gradient, second_order),
    )
    solution = solver.solve(system, state)
    residual, spent, judge = solution.residual, solution.products, solution.judge
    v_norm, q, lengths, carry = pytree.norm(v), solution.vector, solution.norms, solution.carry
    if check and solver.checkable and not solution.checked:
        left = pytree.add(v, system.hessian(q), -1.0)
        judge = functools.partial(_measured, judge, residual, spent)
        residual, spent = pytree.norm(left) / v_norm.clamp(min=1e-300), spent + 1
        del left
    del v, solution, system
    grads = estimator.gradient(flat, q, second_order)
    if direct is not None:
        grads = pytree.add(grads, flat.pull_back(direct))
    grads = flat.ranks.all_reduce_sum(grads)
    numbers = _stacked(outer_loss, v_norm, pytree.norm(grads), pytree.norm(q), residual, lengths)
    return PendingHypergradient(grads, q if keep else None, carry, numbers, True, residual is not None, judge, spent)


def _measured(
    judge: Judge, known: Tensor | None, products: int, norms: Sequence[float], residual: float | None
) -> Status:
    """Return the status by a residual that was measured after the solver had reported its own, `known`."""
    believed = judge(norms, None if known is None else float(known))
    return believed if residual is None else measured_status(believed, residual, products)


def _along_path(path: Path, problem: FlatProblem) -> PendingHypergradient:
    grads = problem.pull_back_attached(path.gradient)
    norms = path.inner_norms
    floored = [max(norm, 1e-8) for norm in norms]  # at a minimum, gradients are rounding errors
    status = series_status(floored, floored[-1] / max(floored[0], TOLERANCE))
    if pytree.norm(path.start_gradient) > RUNAWAY * pytree.norm(path.outer_gradient):
        status = Status.DIVERGING
    v_norm = pytree.norm(path.outer_gradient)
    lengths = torch.tensor(norms, dtype=torch.float64, device=v_norm.device)
    numbers = _stacked(path.outer_loss, v_norm, pytree.norm(grads), None, None, lengths)
    return PendingHypergradient(grads, None, None, numbers, False, False, lambda *_: status, 0)


def _stacked(
    outer_loss: Tensor | float,
    v_norm: Tensor,
    grad_norm: Tensor,
    q_norm: Tensor | None,
    residual: Tensor | None,
    norms: Tensor,
) -> Tensor:
    """Return `PendingHypergradient.numbers`, filled on the device: a copy would make the host wait."""
    numbers = torch.full((5 + len(norms),), math.nan, dtype=torch.float64, device=v_norm.device)
    for place, number in enumerate((outer_loss, v_norm, grad_norm, q_norm, residual)):
        if number is not None:
            numbers[place] = number
    numbers[5:] = norms
    return numbers
