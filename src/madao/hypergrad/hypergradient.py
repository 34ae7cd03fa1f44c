"""The gradient of an outer loss through the solution of an inner problem."""

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from madao.distributed.group import ProcessGroup
from madao.hypergrad import pytree
from madao.hypergrad.autodiff.products import ForwardOverReverse, SecondOrder
from madao.hypergrad.estimators.estimators import Estimator, FlatProblem, Relaxed
from madao.hypergrad.flat_problem import FlatTerm, flat_terms
from madao.hypergrad.problem import Loss, Problem, Term, detached
from madao.hypergrad.pytree import Operator, OptionalVector, Vector
from madao.hypergrad.result import RUNAWAY, TOLERANCE, Solution, Stats, Status, measured_status, series_status
from madao.hypergrad.solvers.deflated import Deflated
from madao.hypergrad.solvers.gauss_newton import GaussNewton
from madao.hypergrad.solvers.neumann import Neumann, PowerSeries
from madao.hypergrad.solvers.unrolled import Unrolled

Judge = Callable[[Sequence[float], float | None], Status]


class LinearSolver(Protocol):
    """A way to q ≈ H⁻¹ v from products with H."""

    def solve(self, operator: Operator, v: Vector) -> Solution:
        """Approximate H⁻¹ v."""


Solver = LinearSolver | Unrolled | Deflated


@dataclasses.dataclass(frozen=True, eq=False)
class Hypergradient:
    """∂g/∂φ, and whether to trust it.

    Attributes:
        grads: In the form of `Problem.hyper`.
        stats: The health of the result.
        solution: q, in the form of `Problem.params`; None for `Unrolled`.
        recent: The next call's `recent`, for `Deflated`.
    """

    grads: Any
    stats: Stats
    solution: Any = None
    recent: Tensor | None = None


@dataclasses.dataclass(frozen=True, eq=False)
class PendingHypergradient:
    """A hypergradient whose numbers are still on the device: nothing made the host wait.

    Attributes:
        grads: Flat.
        solution: q, flat; None for `Unrolled`, and where it was not to be kept.
        newest: The gradient that `Deflated` remembers.
        numbers: g, ‖v‖, ‖∂g/∂φ‖, ‖q‖ and the residual (NaN where there is none), then the solver's norms; float64.
        solved: Whether there was a q.
        measured: Whether there is a residual.
        judge: From the solver's norms and the residual to the status.
        products: How many Hessian-vector products were spent.
    """

    grads: Vector
    solution: Vector | None
    newest: Tensor | None
    numbers: Tensor
    solved: bool
    measured: bool
    judge: Judge
    products: int

    def read(self) -> Stats:
        """The health of the result. The host waits, once."""
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
    recent: Tensor | None = None,
) -> Hypergradient:
    """∂g/∂φ by the implicit function theorem.

        v = ∇θ g(θ)        q ≈ H⁻¹ v, H = ∇²θ f        ∂g/∂φ = ∂g/∂φ|θ − ∂/∂φ ⟨q, ∇θ f(θ, φ)⟩

    Nothing is written: neither parameters nor their `.grad`.

    Args:
        problem: What is differentiated.
        solver: How H⁻¹ v is approximated: `Neumann` (the default), `ConjugateGradient`, `Identity`, `Nystrom`; or
            `Unrolled`, which differentiates through inner steps instead; `GaussNewton`, which takes another matrix for
            H; or `Deflated`, which has no system to solve.
        hvp: How products with H are made: `ForwardOverReverse` (the default), `DoubleBackward`, `FiniteDifference`.
        estimator: How q becomes a gradient in φ: `Relaxed` (the default) or `Influence`.
        check: Whether one more product is spent on measuring the residual ‖v − H q‖ / ‖v‖. `Deflated` has none, and
            `GaussNewton` knows that of its own system, damped.
        recent: For `Deflated`: what the call before returned by that name.
    """
    found = pending_hypergradient(problem, solver, hvp, estimator, check, recent)
    solution = None
    if found.solution is not None:
        solution = pytree.flatten(problem.params, "params")[1](found.solution)
    grads = pytree.flatten(problem.hyper, "hyper")[1](found.grads)
    stats = found.read()
    if isinstance(solver, Deflated) and found.newest is not None and stats.usable:
        recent = solver.remembered(recent, found.newest)
    return Hypergradient(grads, stats, solution, recent)


def pending_hypergradient(
    problem: Problem,
    solver: Solver | None = None,
    hvp: SecondOrder | None = None,
    estimator: Estimator | None = None,
    check: bool = True,
    recent: Tensor | None = None,
    keep: bool = True,
) -> PendingHypergradient:
    """`hypergradient` without waiting for its numbers, so that a CUDA graph can hold it; arguments as there.

    `ConjugateGradient`, `Nystrom` and `Unrolled` wait on the way. With `keep` false q is let go of: it is as large as
    the parameters, and so is every vector here, which is why each is held no longer than it has to be.
    """
    solver = Neumann() if solver is None else solver
    second_order = ForwardOverReverse() if hvp is None else hvp
    estimator = Relaxed() if estimator is None else estimator
    params, form_params = pytree.flatten(problem.params, "params")
    hyper, form_hyper = pytree.flatten(problem.hyper, "hyper")
    same = problem.inputs is None
    inputs, form_inputs = (hyper, form_hyper) if same else pytree.flatten(problem.inputs, "inputs")

    if not same:
        for tensor in hyper:
            if not tensor.requires_grad:
                raise ValueError("every tensor of hyper must require a gradient; leave out those that are frozen")

    def flat(loss: Loss | Sequence[Term], name: str) -> list[FlatTerm]:
        return flat_terms(loss, name, form_params, form_inputs)

    inner, outer = flat(problem.inner, "inner"), flat(problem.outer, "outer")
    plain = None if problem.plain is None else pytree.flatten(problem.plain, "plain")[0]
    ranks = problem.ranks
    given = (problem.log_prob, problem.classes, problem.draws, plain, ranks)
    setting = FlatProblem(params, inputs, inner, hyper, *given)

    if recent is not None:
        _check_recent(solver, recent, params)
    if isinstance(solver, Unrolled):
        if ranks.world > 1:
            raise ValueError("Unrolled does not work over several processes; use another solver")
        return _unrolled(solver, setting, outer, problem.weight_decay, estimator)
    outer_loss, v, direct = _gradient(outer, params, inputs, second_order, ranks)
    curvature = inner if problem.curvature is None else flat(problem.curvature, "curvature")
    operator: Operator | None = None
    if isinstance(solver, Deflated):
        gradient = _gradient(curvature, params, inputs, second_order, ranks, direct=False)[1]
        gradient = pytree.add(gradient, params, problem.weight_decay) if problem.weight_decay else gradient
        solution = solver.solve(v, gradient, recent)
        del gradient
    else:
        products = second_order.gauss_newton if isinstance(solver, GaussNewton) else second_order.products
        operators = [(products(term.loss, params, term.given(detached(inputs))), term.weight) for term in curvature]
        operator = _summed(operators, problem.weight_decay, ranks)
        solution = solver.solve(operator, v)
    residual, spent, judge = solution.residual, solution.products, solution.judge
    own = isinstance(solver, (PowerSeries, GaussNewton)) and residual is not None  # which measure it on the way
    v_norm, q, lengths, newest = pytree.norm(v), solution.vector, solution.norms, solution.newest
    if check and not own and operator is not None:
        left = pytree.add(v, operator(q), -1.0)
        judge = functools.partial(_measured, judge, residual, spent)
        residual, spent = pytree.norm(left) / v_norm.clamp(min=1e-300), spent + 1
        del left
    del v, solution, operator
    grads = estimator.gradient(setting, q, second_order)
    if direct is not None:
        grads = pytree.add(grads, setting.pull_back(direct))
    grads = ranks.all_reduce_sum(grads)
    numbers = _stacked(outer_loss, v_norm, pytree.norm(grads), pytree.norm(q), residual, lengths)
    return PendingHypergradient(grads, q if keep else None, newest, numbers, True, residual is not None, judge, spent)


def _measured(
    judge: Judge, known: Tensor | None, products: int, norms: Sequence[float], residual: float | None
) -> Status:
    """The status by a residual that was measured after what the solver `known` of it."""
    believed = judge(norms, None if known is None else float(known))
    return believed if residual is None else measured_status(believed, residual, products)


def _unrolled(
    solver: Unrolled,
    setting: FlatProblem,
    outer: Sequence[FlatTerm],
    weight_decay: float,
    estimator: Estimator,
) -> PendingHypergradient:
    if not isinstance(estimator, Relaxed):
        raise ValueError(f"Unrolled goes with the estimator Relaxed() alone, got {estimator!r}")
    path = solver.differentiate(setting, outer, weight_decay)
    grads = estimator.pulled_back(setting, path.gradient)
    norms = path.inner_norms
    floored = [max(norm, 1e-8) for norm in norms]  # at a minimum gradients are rounding, which goes up and down
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
    """What `PendingHypergradient.read` takes apart. A copy between devices would make the host wait."""
    numbers = torch.full((5 + len(norms),), math.nan, dtype=torch.float64, device=v_norm.device)
    for place, number in enumerate((outer_loss, v_norm, grad_norm, q_norm, residual)):
        if number is not None:
            numbers[place] = number
    numbers[5:] = norms
    return numbers


def _check_recent(solver: Solver, recent: Tensor, params: Vector) -> None:
    if not isinstance(solver, Deflated):
        raise ValueError(f"only Deflated() has recent gradients, got {solver!r}")
    expected = (solver.memory - 1, sum(tensor.numel() for tensor in params))
    if tuple(recent.shape) != expected:
        raise ValueError(
            f"recent gradients of these params and this solver have the shape {list(expected)}, got "
            f"{list(recent.shape)}; give what the call before returned"
        )


def _gradient(
    terms: Sequence[FlatTerm],
    params: Vector,
    inputs: Vector,
    second_order: SecondOrder,
    ranks: ProcessGroup,
    direct: bool = True,
) -> tuple[Tensor, Vector, Vector | None]:
    """A loss of θ, its gradient in θ, and that in the inputs: None where it is not wanted, or there is none.

    Loss and gradient in θ are of all processes' examples, the gradient in the inputs is of one's own.
    """
    value = torch.zeros((), device=params[0].device)
    gradient: Vector | None = None
    by_inputs: Vector | None = None
    for term in terms:
        given, back = term.with_vjp(inputs) if direct else (term.given(detached(inputs)), None)
        part, found = second_order.gradient(term.loss, params, given)
        if all(part_gradient is None for part_gradient in found[: len(params)]):
            raise ValueError(
                f"the {term.loss.name} loss does not depend on the params it is given; compute it from them, for a "
                "module with FunctionalModel(model)(params, images)"
            )
        gradient = _sum(gradient, _filled(found[: len(params)], params), term.weight)
        if back is not None:
            through = back(found[len(params) :])
            if any(part_gradient is not None for part_gradient in through):
                by_inputs = _sum(by_inputs, _filled(through, inputs), term.weight)
        value = value + term.weight * part
    assert gradient is not None
    value, *summed = ranks.all_reduce_sum((value, *gradient))
    return value, tuple(summed), by_inputs


def _filled(gradient: OptionalVector, like: Vector) -> Vector:
    return tuple(torch.zeros_like(p) if g is None else g for g, p in zip(gradient, like, strict=True))


def _sum(so_far: Vector | None, part: Vector, weight: float) -> Vector:
    if so_far is None:
        return part if weight == 1 else pytree.scaled(part, weight)
    return pytree.add(so_far, part, weight)


def _summed(operators: Sequence[tuple[Operator, float]], weight_decay: float, ranks: ProcessGroup) -> Operator:
    """V ↦ H v, summed over microbatches and processes, the weight decay's part in closed form."""

    def product(direction: Vector) -> Vector:
        result: Vector | None = None
        for operator, weight in operators:
            result = _sum(result, operator(direction), weight)
        assert result is not None
        result = ranks.all_reduce_sum(result)
        return pytree.add(result, direction, weight_decay) if weight_decay else result

    return product
