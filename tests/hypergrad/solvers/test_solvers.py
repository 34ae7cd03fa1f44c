"""Every solver on every problem with a known hypergradient, and the error that each guarantees."""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from madao.hypergrad import (
    ConjugateGradient,
    Deflated,
    DoubleBackward,
    FiniteDifference,
    ForwardOverReverse,
    GaussNewton,
    Identity,
    Influence,
    Momentum,
    Neumann,
    Nystrom,
    Problem,
    Solver,
    Status,
    System,
    Unrolled,
    hypergradient,
)
from madao.hypergrad.autodiff.products import SecondOrder
from tests.helpers.problems import PROBLEMS, Known, quadratic, random

SOLVERS: dict[str, Callable[[Known], Solver]] = {
    "neumann": lambda k: Neumann(steps=math.ceil(16 * k.largest / k.smallest), scale=1 / k.largest),
    "conjugate gradient": lambda k: ConjugateGradient(steps=5 * len(k.hessian), tolerance=1e-12),
    "nystrom": lambda k: Nystrom(rank=len(k.hessian), damping=1e-9),
    "unrolled": lambda k: Unrolled(math.ceil(40 * math.sqrt(k.largest / k.smallest)) + 40, fast_momentum(k)),
}
KINDS: list[SecondOrder] = [ForwardOverReverse(), DoubleBackward(), FiniteDifference()]


def fast_momentum(k: Known) -> Momentum:
    """Polyak's choice, optimal for the curvatures."""
    low, high = math.sqrt(k.smallest), math.sqrt(k.largest)
    return Momentum(learning_rate=(2 / (low + high)) ** 2, momentum=((high - low) / (high + low)) ** 2)


@functools.cache
def problem_named(name: str) -> Known:
    return PROBLEMS[name]()


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: type(kind).__name__)
@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("name", PROBLEMS)
def test_every_solver_finds_the_known_hypergradient(name: str, solver: str, kind: SecondOrder) -> None:
    known = problem_named(name)
    result = hypergradient(known.problem, SOLVERS[solver](known), kind)
    torch.testing.assert_close(result.grads, known.exact, rtol=2e-5, atol=1e-7)
    assert result.stats.usable
    assert result.stats.residual is None or result.stats.residual < 1e-5


@pytest.mark.parametrize("name", PROBLEMS)
def test_identity_is_one_step_ahead(name: str) -> None:
    """q = αv is exactly g(θ − α ∇f(θ, φ)) differentiated in φ, to first order in α."""
    problem, alpha = problem_named(name).problem, 1e-6
    gradient = hypergradient(problem, Identity(alpha)).grads

    def one_step(phi: Tensor) -> Tensor:
        theta = problem.params - alpha * torch.func.grad(problem.inner)(problem.params, phi)  # type: ignore[arg-type]
        value: Tensor = problem.outer(theta, phi)  # type: ignore[operator]
        return value

    torch.testing.assert_close(gradient, torch.func.grad(one_step)(problem.hyper), rtol=1e-4, atol=1e-11)


def linear_system(seed: int = 0, size: int = 7) -> tuple[Tensor, Tensor]:
    root = random(size, size, seed=seed)
    return root @ root.T / size + 0.3 * torch.eye(size, dtype=torch.float64), random(size, seed=seed + 1)


def solve(solver: Solver, matrix: Tensor, v: Tensor) -> Tensor:
    return solver.solve(System((v,), lambda parts: (matrix @ parts[0],))).vector[0]


@pytest.mark.parametrize("steps", [0, 1, 2, 5, 9])
def test_neumann_is_its_series(steps: int) -> None:
    """Catches a running sum that shares memory with the running term, which gives 2^J (I − αH)^J v."""
    matrix, v = linear_system()
    scale, before = 0.3, v.clone()
    step = torch.eye(7, dtype=torch.float64) - scale * matrix
    expected = scale * sum((torch.linalg.matrix_power(step, j) @ v for j in range(steps + 1)), torch.zeros_like(v))
    torch.testing.assert_close(solve(Neumann(steps, scale), matrix, v), expected)
    assert torch.equal(v, before)


@pytest.mark.parametrize("damping", [0.0, 0.1, 1.0, 3.0])
def test_conjugate_gradient_is_exact_in_as_many_steps_as_dimensions(damping: float) -> None:
    """With damping other than one too, which catches a scale on half of the system."""
    matrix, v = linear_system()
    exact = torch.linalg.solve(matrix + damping * torch.eye(7, dtype=torch.float64), v)
    found = ConjugateGradient(steps=7, tolerance=0.0, damping=damping).solve(System((v,), lambda p: (matrix @ p[0],)))
    torch.testing.assert_close(found.vector[0], exact, rtol=1e-9, atol=1e-12)
    early = solve(ConjugateGradient(steps=3, tolerance=0.0, damping=damping), matrix, v)
    assert (early - exact).norm() > 1e-4 * exact.norm()


@pytest.mark.parametrize("steps", [1, 2, 4, 6])
def test_conjugate_gradient_reports_its_true_residual(steps: int) -> None:
    """Catches a stale residual."""
    matrix, v = linear_system()
    found = ConjugateGradient(steps=steps, tolerance=0.0).solve(System((v,), lambda p: (matrix @ p[0],)))
    true = float((v - matrix @ found.vector[0]).norm() / v.norm())
    assert found.residual == pytest.approx(true, rel=1e-6)
    assert float(found.norms[-1]) == pytest.approx(true * float(v.norm()), rel=1e-6)
    assert found.products == steps


def test_conjugate_gradient_minimises_over_the_krylov_space() -> None:
    """After k steps nothing of span{v, Hv, …, H^{k−1}v} is closer in the norm of H."""
    matrix, v = linear_system()
    found = solve(ConjugateGradient(steps=3, tolerance=0.0), matrix, v)
    basis = torch.stack([torch.linalg.matrix_power(matrix, j) @ v for j in range(3)], 1)
    best = basis @ torch.linalg.solve(basis.T @ matrix @ basis, basis.T @ v)
    torch.testing.assert_close(found, best)


@pytest.mark.parametrize("rank", [1, 3, 5])
def test_nystrom_is_exact_for_a_hessian_of_its_rank(rank: int) -> None:
    factor = random(9, rank, seed=3)
    matrix, v = factor @ factor.T, random(9, seed=4)
    exact = torch.linalg.solve(matrix + 0.1 * torch.eye(9, dtype=torch.float64), v)
    torch.testing.assert_close(solve(Nystrom(rank, damping=0.1), matrix, v), exact, rtol=1e-6, atol=1e-8)


def test_nystrom_improves_with_rank() -> None:
    matrix, v = linear_system(size=20)
    exact = torch.linalg.solve(matrix + 0.01 * torch.eye(20, dtype=torch.float64), v)
    errors = [float((solve(Nystrom(rank, 0.01), matrix, v) - exact).norm()) for rank in (2, 8, 14, 20)]
    assert errors == sorted(errors, reverse=True)
    assert errors[-1] < 1e-6 * float(exact.norm())


def test_unrolled_from_elsewhere_converges_to_the_implicit_gradient() -> None:
    known = quadratic()
    errors = []
    for steps in (5, 20, 80):
        problem = dataclasses.replace(known.problem, params=torch.zeros(6, dtype=torch.float64))
        result = hypergradient(problem, Unrolled(steps, fast_momentum(known)))
        errors.append(float((result.grads - known.exact).norm()))
    assert errors[0] > 1e-2
    assert errors[1] < 0.2 * errors[0]
    assert errors[2] < 1e-6
    assert result.stats.status is Status.CONVERGED


def test_unrolled_is_exact_for_its_own_steps() -> None:
    """Against central differences of the steps written out, momentum and weight decay included."""
    known = quadratic()
    start, decay = random(6, seed=20), 0.07
    problem = dataclasses.replace(known.problem, params=start, weight_decay=decay)
    optimizer = Momentum(learning_rate=0.2, momentum=0.6)
    result = hypergradient(problem, Unrolled(7, optimizer))

    def after_steps(phi: Tensor) -> Tensor:
        theta, velocity = start, torch.zeros_like(start)
        for _ in range(7):
            gradient = torch.func.grad(problem.inner)(theta, phi) + decay * theta  # type: ignore[arg-type]
            velocity = 0.6 * velocity + gradient
            theta = theta - 0.2 * velocity
        value: Tensor = problem.outer(theta, phi)  # type: ignore[operator]
        return value

    step = 1e-5
    expected = torch.stack(
        [
            (after_steps(known.problem.hyper + step * e) - after_steps(known.problem.hyper - step * e)) / (2 * step)
            for e in torch.eye(3, dtype=torch.float64)
        ]
    )
    torch.testing.assert_close(result.grads, expected, rtol=1e-7, atol=1e-8)


def test_weight_decay_counts_as_part_of_the_inner_loss() -> None:
    known = quadratic()
    decay = 0.4
    problem = known.problem
    with_term = dataclasses.replace(
        problem,
        inner=lambda t, p: problem.inner(t, p) + 0.5 * decay * t.square().sum(),  # type: ignore[operator]
    )
    said = dataclasses.replace(problem, weight_decay=decay)
    solver = ConjugateGradient(steps=6, tolerance=0)
    torch.testing.assert_close(hypergradient(said, solver).grads, hypergradient(with_term, solver).grads)
    assert hypergradient(said, solver).stats.residual == pytest.approx(0, abs=1e-10)
    assert not torch.allclose(hypergradient(said, solver).grads, hypergradient(problem, solver).grads)


def test_the_curvature_may_come_from_another_loss() -> None:
    known = quadratic()
    doubled = dataclasses.replace(known.problem, curvature=lambda t, p: 2 * known.problem.inner(t, p))  # type: ignore[operator]
    direct = 2 * known.problem.hyper
    solver = ConjugateGradient(steps=6, tolerance=0)
    torch.testing.assert_close(hypergradient(doubled, solver).grads - direct, (known.exact - direct) / 2)


def test_nothing_is_written_to() -> None:
    theta = random(4, seed=1).requires_grad_()
    phi = random(4, seed=2).requires_grad_()
    before = theta.detach().clone(), phi.detach().clone()
    problem = Problem(theta, phi, lambda t, p: ((t - p) ** 4 + t**2).sum(), lambda t, _: t.sum())
    for kind in KINDS:
        result = hypergradient(problem, Neumann(3, 0.05), kind)
        assert not result.grads.requires_grad
    assert torch.equal(theta, before[0])
    assert torch.equal(phi, before[1])
    assert theta.grad is None
    assert phi.grad is None


def test_results_have_the_form_of_their_problem() -> None:
    params = {"a": random(3, seed=1), "b": [random(2, 2, seed=2)]}
    hyper = (random(3, seed=3), {"c": random(2, 2, seed=4)})

    def inner(p: dict[str, Tensor], h: tuple[Tensor, dict[str, Tensor]]) -> Tensor:
        return 0.5 * (p["a"] - h[0]).square().sum() + 0.5 * (p["b"][0] - h[1]["c"]).square().sum()

    result = hypergradient(
        Problem(params, hyper, inner, lambda p, _: p["a"].sum() + 2 * p["b"][0].sum()), Neumann(0, 1.0)
    )
    torch.testing.assert_close(result.grads[0], torch.ones(3, dtype=torch.float64))
    torch.testing.assert_close(result.grads[1]["c"], torch.full((2, 2), 2.0, dtype=torch.float64))


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        (Neumann, {"steps": -1}),
        (Neumann, {"scale": 0.0}),
        *((Neumann, {"tolerance": tolerance}) for tolerance in (-0.1, 1.0, math.nan)),
        (ConjugateGradient, {"steps": 0}),
        (ConjugateGradient, {"damping": -1}),
        (GaussNewton, {"steps": 0}),
        (GaussNewton, {"damping": -1.0}),
        (GaussNewton, {"scale": 0.0}),
        (Deflated, {"memory": 0}),
        *((Deflated, {"scale": scale}) for scale in (0.0, math.nan)),
        *((Deflated, {"damping": damping}) for damping in (0.0, -1.0)),
        (Nystrom, {"rank": 0}),
        (Nystrom, {"damping": 0.0}),
        (Identity, {"scale": -1.0}),
        (Unrolled, {"steps": 0}),
        (FiniteDifference, {"step": 0.0}),
    ],
)
def test_settings_out_of_range_raise(kind: Callable[..., object], settings: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(settings))):
        kind(**settings)


ONE = torch.ones(2)


@pytest.mark.parametrize(
    ("changes", "place"),
    [
        ({"inner": lambda t, p: (t * p)[None]}, r"inner loss .* \[1, 2\]"),
        ({"outer": lambda t, _: 1.0}, "outer loss .* float"),
        ({"inner": lambda t, p: (t * p)[:0]}, "inner loss is empty"),
        ({"hyper": []}, "hyper is empty"),
        *(({"outer": constant}, "outer loss") for constant in (lambda t, _: ONE.sum(), lambda t, p: p.sum())),
        ({"hyper": ONE.clone().requires_grad_(), "inputs": 2 * ONE}, "inputs"),
        ({"inputs": 2 * ONE}, "hyper must require a gradient"),
    ],
)
def test_malformed_problems_raise(changes: dict[str, Any], place: str) -> None:
    fields: dict[str, Any] = {"params": ONE, "hyper": ONE, "inner": lambda t, p: (t * p).sum()}
    with pytest.raises(ValueError, match=place):
        hypergradient(Problem(**{**fields, "outer": lambda t, _: t.sum(), **changes}))


def test_problems_that_are_not_differentiable_raise() -> None:
    inner, outer = (lambda t, p: (t * p).sum()), (lambda t, _: t.sum())
    with pytest.raises(TypeError, match="params"):
        hypergradient(Problem(torch.ones(2, dtype=torch.int64), ONE, inner, outer))
    with pytest.raises(ValueError, match=r"Relaxed\(\), got Influence"):
        hypergradient(Problem(ONE, ONE, inner, outer), Unrolled(2), estimator=Influence())
