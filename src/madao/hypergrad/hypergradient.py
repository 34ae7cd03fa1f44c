"""The gradient of an outer loss through the solution of an inner problem."""

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from madao.hypergrad import vector
from madao.hypergrad.amortized import Amortized
from madao.hypergrad.estimators import Estimator, Relaxed, Setting
from madao.hypergrad.hvp import ForwardOverReverse, PureLoss, SecondOrder
from madao.hypergrad.neumann import Neumann
from madao.hypergrad.problem import Loss, Problem, Term, as_terms, check_loss, detached, mean
from madao.hypergrad.stats import RUNAWAY, TOLERANCE, Solution, Stats, Status, series_status
from madao.hypergrad.unrolled import Unrolled
from madao.hypergrad.vector import Operator, Vector


class LinearSolver(Protocol):
    """A way to q ≈ H⁻¹ v from products with H."""

    def solve(self, operator: Operator, v: Vector) -> Solution:
        """Approximate H⁻¹ v."""


@dataclasses.dataclass(frozen=True, eq=False)
class Hypergradient:
    """∂g/∂φ, and whether to trust it.

    Attributes:
        grads: In the form of `Problem.hyper`.
        stats: The health of the result.
        solution: q, in the form of `Problem.params`; None for `Unrolled`. The next call's `start`.
    """

    grads: Any
    stats: Stats
    solution: Any = None


def hypergradient(
    problem: Problem,
    solver: LinearSolver | Unrolled | None = None,
    hvp: SecondOrder | None = None,
    estimator: Estimator | None = None,
    check: bool = True,
    start: Any = None,
) -> Hypergradient:
    """∂g/∂φ by the implicit function theorem.

        v = ∇θ g(θ)        q ≈ H⁻¹ v, H = ∇²θ f        ∂g/∂φ = ∂g/∂φ|θ − ∂/∂φ ⟨q, ∇θ f(θ, φ)⟩

    Nothing is written: neither parameters nor their `.grad`.

    Args:
        problem: What is differentiated.
        solver: How H⁻¹ v is approximated: `Neumann` (the default), `ConjugateGradient`, `Identity`, `Nystrom`; or
            `Unrolled`, which differentiates through inner steps instead; or `Amortized`, which goes on from `start`.
        hvp: How products with H are made: `ForwardOverReverse` (the default), `DoubleBackward`, `FiniteDifference`.
        estimator: How q becomes a gradient in φ: `Relaxed` (the default) or `Influence`.
        check: Whether one more product is spent on measuring the residual ‖v − H q‖ / ‖v‖.
        start: For `Amortized`: the `solution` of the call before.
    """
    solver = Neumann() if solver is None else solver
    second_order = ForwardOverReverse() if hvp is None else hvp
    estimator = Relaxed() if estimator is None else estimator
    params, form_params = vector.flatten(problem.params, "params")
    hyper, form_hyper = vector.flatten(problem.hyper, "hyper")
    same = problem.inputs is None
    inputs, form_inputs = (hyper, form_hyper) if same else vector.flatten(problem.inputs, "inputs")

    if not same:
        for tensor in hyper:
            if not tensor.requires_grad:
                raise ValueError("every tensor of hyper must require a gradient; leave out those that are frozen")

    def pure(loss: Loss | Sequence[Term], name: str) -> list[tuple[PureLoss, float]]:
        return [(_pure(term.loss, name, form_params, form_inputs), term.weight) for term in as_terms(loss)]

    inner, outer = pure(problem.inner, "inner"), pure(problem.outer, "outer")
    plain = problem.plain
    setting = Setting(
        params,
        inputs,
        inner,
        hyper,
        problem.log_prob,
        problem.classes,
        None if plain is None else lambda p: check_loss(plain(form_params(p)), "plain"),
    )

    if start is not None and not isinstance(solver, Amortized):
        raise ValueError(f"only Amortized() goes on from a start, got {solver!r}")
    if isinstance(solver, Unrolled):
        if not isinstance(estimator, Relaxed):
            raise ValueError(f"Unrolled goes with the estimator Relaxed() alone, got {estimator!r}")
        path = solver.differentiate(setting, outer, problem.weight_decay)
        grads = estimator.pulled_back(setting, path.gradient)
        norms = path.inner_norms
        floored = [max(norm, 1e-8) for norm in norms]  # at a minimum gradients are rounding, which goes up and down
        status = series_status(floored, floored[-1] / max(floored[0], TOLERANCE))
        if vector.norm(path.start_gradient) > RUNAWAY * vector.norm(path.outer_gradient):
            status = Status.DIVERGING
        stats = _stats(status, path.outer_loss, path.outer_gradient, None, None, norms, grads, 0)
        return Hypergradient(form_hyper(grads), stats)

    outer_loss, v, direct = _outer_gradient(outer, params, inputs)
    curvature = inner if problem.curvature is None else pure(problem.curvature, "curvature")
    operator = _hessian(curvature, params, inputs, second_order, problem.weight_decay)
    solution = solver.solve(operator, v) if start is None else _go_on(solver, operator, v, start, problem.params)
    residual, products, status = solution.residual, solution.products, solution.status
    # The amortized solver has measured its own, of a damped system, and judges it by its own limit.
    if check and status is not Status.NON_FINITE and not isinstance(solver, Amortized):
        left = vector.add(v, operator(solution.vector), -1.0)
        residual, products = float(vector.norm(left) / vector.norm(v).clamp(min=1e-300)), products + 1
        status = solution.measured(residual)
    grads = estimator.gradient(setting, solution.vector, second_order)
    if direct is not None:
        grads = vector.add(grads, setting.pull_back(direct))
    stats = _stats(status, outer_loss, v, solution.vector, residual, solution.term_norms, grads, products)
    return Hypergradient(form_hyper(grads), stats, form_params(solution.vector))


def _go_on(solver: Any, operator: Operator, v: Vector, start: Any, params: Any) -> Solution:
    """One step from the solution of the call before."""
    if isinstance(start, dict) and isinstance(params, dict) and start.keys() == params.keys():
        start = {name: start[name] for name in params}  # the order in which tensors are made flat
    flat, _ = vector.flatten(start, "start")
    if [tensor.shape for tensor in flat] != [tensor.shape for tensor in v]:
        raise ValueError("start must have the form and shapes of params; give the `solution` of the call before")
    solution: Solution = solver.solve(operator, v, flat)
    return solution


def _pure(
    loss: Loss, name: str, form_params: Callable[[Vector], Any], form_inputs: Callable[[Vector], Any]
) -> PureLoss:
    return lambda params, inputs: check_loss(loss(form_params(params), form_inputs(inputs)), name)


def _outer_gradient(
    terms: Sequence[tuple[PureLoss, float]], params: Vector, inputs: Vector
) -> tuple[float, Vector, Vector | None]:
    """G(θ), its gradient in θ, and its direct gradient in the inputs, None where it does not depend on them."""
    value, gradient, direct = 0.0, vector.zeros_like((*params, *inputs)), False
    for loss, weight in terms:
        point, leaves = detached(params, requires_grad=True), detached(inputs, requires_grad=True)
        with torch.enable_grad():
            part = weight * mean(loss(point, leaves))
            found = (
                torch.autograd.grad(part, (*point, *leaves), allow_unused=True)
                if part.requires_grad
                else (None,) * len(gradient)
            )
        if all(part_gradient is None for part_gradient in found[: len(params)]):
            raise ValueError(
                "the outer loss does not depend on the params it is given; compute it from them, for a module with "
                "PureModel(model)(params, images)"
            )
        direct = direct or any(part_gradient is not None for part_gradient in found[len(params) :])
        filled = (torch.zeros_like(g) if f is None else f for f, g in zip(found, gradient, strict=True))
        gradient = vector.add(gradient, tuple(filled))
        value += float(part.detach())
    return value, gradient[: len(params)], gradient[len(params) :] if direct else None


def _hessian(
    terms: Sequence[tuple[PureLoss, float]],
    params: Vector,
    inputs: Vector,
    second_order: SecondOrder,
    weight_decay: float,
) -> Operator:
    """V ↦ H v, summed over microbatches, the weight decay's part in closed form."""
    operators = [(second_order.products(loss, params, inputs), weight) for loss, weight in terms]

    def product(direction: Vector) -> Vector:
        result = vector.scaled(direction, weight_decay)
        for operator, weight in operators:
            result = vector.add(result, operator(direction), weight)
        return result

    return product


def _stats(
    status: Status,
    outer_loss: float,
    v: Vector,
    q: Vector | None,
    residual: float | None,
    term_norms: tuple[float, ...],
    grads: Vector,
    products: int,
) -> Stats:
    norms: list[Tensor] = [vector.norm(v), vector.norm(grads), *([] if q is None else [vector.norm(q)])]
    v_norm, grad_norm, *q_norm = torch.stack(norms).tolist()
    finite = all(map(math.isfinite, (outer_loss, v_norm, grad_norm, *q_norm)))
    return Stats(
        status=status if finite else Status.NON_FINITE,
        outer_loss=outer_loss,
        v_norm=v_norm,
        q_norm=q_norm[0] if q_norm else math.nan,
        residual=residual,
        term_norms=term_norms,
        grad_norm=grad_norm,
        products=products,
    )
