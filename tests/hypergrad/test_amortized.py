"""One step a call, carried on from call to call, against the system solved outright."""

import dataclasses
import itertools
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from madao.hypergrad import (
    Amortized,
    Averaged,
    ConjugateGradient,
    Hypergradient,
    Identity,
    Neumann,
    Nystrom,
    Problem,
    Status,
    hypergradient,
)
from madao.hypergrad.amortized import RUNAWAY
from madao.hypergrad.hypergradient import LinearSolver
from tests.hypergrad.problems import Known, quadratic, random

KNOWN = quadratic()
DAMPING = 0.2
EYE = torch.eye(6, dtype=torch.float64)


def outer_gradient(known: Known) -> Tensor:
    v: Tensor = torch.func.grad(known.problem.outer)(known.problem.params, known.problem.hyper)  # type: ignore[arg-type]
    return v


def closed_form(known: Known, damping: float) -> tuple[Tensor, Tensor]:
    """q = (H + λI)⁻¹ v and ∂g/∂φ = ∂g/∂φ|θ − (∂²f/∂θ∂φ)ᵀ q, all of them written out."""
    theta, phi = known.problem.params, known.problem.hyper
    q = torch.linalg.solve(known.hessian + damping * EYE, outer_gradient(known))
    mixed = torch.func.jacrev(torch.func.grad(known.problem.inner), argnums=1)(theta, phi)  # type: ignore[arg-type]
    direct = torch.func.grad(known.problem.outer, argnums=1)(theta, phi)  # type: ignore[arg-type]
    return q, direct - mixed.T @ q


def calls(problem: Problem, solver: Amortized, count: int, check: bool = False) -> list[Hypergradient]:
    results: list[Hypergradient] = []
    for _ in range(count):
        start = results[-1].solution if results else None
        results.append(hypergradient(problem, solver, check=check, start=start))
    return results


@pytest.mark.parametrize("damping", [0.0, DAMPING, 2.0])
def test_calls_converge_to_the_closed_form(damping: float) -> None:
    q, gradient = closed_form(KNOWN, damping)
    last = calls(KNOWN.problem, Amortized(1.6 / (KNOWN.largest + damping), damping), 90)[-1]
    torch.testing.assert_close(last.solution, q, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(last.grads, gradient, rtol=1e-9, atol=1e-9)
    assert last.stats.status is Status.CONVERGED
    assert last.stats.products == 1
    if damping == 0:
        torch.testing.assert_close(last.grads, KNOWN.exact)


def test_the_error_falls_at_the_predicted_rate() -> None:
    """Along a direction of curvature c, by 1 − α (c + λ) a call."""
    scale = 0.9 / (KNOWN.largest + DAMPING)
    q, _ = closed_form(KNOWN, DAMPING)
    values, vectors = torch.linalg.eigh(KNOWN.hessian)
    results = calls(KNOWN.problem, Amortized(scale, DAMPING), 12)
    for before, after in itertools.pairwise(results):
        expected = (1 - scale * (values + DAMPING)) * (vectors.T @ (before.solution - q))
        torch.testing.assert_close(vectors.T @ (after.solution - q), expected, rtol=1e-9, atol=1e-12)


def test_without_a_start_it_is_the_identity() -> None:
    first = hypergradient(KNOWN.problem, Amortized(0.3, DAMPING))
    identity = hypergradient(KNOWN.problem, Identity(0.3), check=False)
    assert torch.equal(first.grads, identity.grads)
    assert torch.equal(first.solution, identity.solution)
    assert first.stats == identity.stats
    torch.testing.assert_close(first.solution, 0.3 * outer_gradient(KNOWN))


def test_one_step_is_the_formula() -> None:
    start, v = random(6, seed=30), outer_gradient(KNOWN)
    before = start.clone()
    applied = KNOWN.hessian @ start + DAMPING * start
    longest = float(start.norm() / applied.norm()) / 2
    for scale, used in ((0.1 * longest, 0.1 * longest), (0.99 * longest, 0.99 * longest), (7 * longest, longest)):
        result = hypergradient(KNOWN.problem, Amortized(scale, DAMPING), check=False, start=start)
        torch.testing.assert_close(result.solution, start + used * (v - applied))
    assert torch.equal(start, before)


def test_the_residual_is_that_of_the_start_and_of_the_damped_system() -> None:
    """It is known without a product more, so that `check` adds none."""
    start, v = random(6, seed=30), outer_gradient(KNOWN)
    stats = hypergradient(KNOWN.problem, Amortized(0.3, DAMPING), check=False, start=start).stats
    left = v - KNOWN.hessian @ start - DAMPING * start
    assert stats.residual == pytest.approx(float(left.norm() / v.norm()), rel=1e-12)
    assert stats.term_norms == pytest.approx((float(v.norm()), float(left.norm())), rel=1e-12)
    assert stats.products == 1
    assert hypergradient(KNOWN.problem, Amortized(0.3, DAMPING), start=start).stats == stats


def test_a_scale_that_is_too_large_is_held_back_and_still_arrives() -> None:
    limit = 2 / (KNOWN.largest + DAMPING)
    exact = torch.linalg.solve(KNOWN.hessian + DAMPING * torch.eye(6, dtype=torch.float64), outer_gradient(KNOWN))
    results = calls(KNOWN.problem, Amortized(3 * limit, DAMPING), 4000, False)
    assert all(result.stats.usable for result in results)
    assert max(float(result.solution.norm()) for result in results) < 10 * float(exact.norm())
    average = torch.stack([result.solution for result in results[2000:]]).mean(0)
    assert float((average - exact).norm()) < 0.1 * float(exact.norm())


def test_a_start_that_is_off_is_no_divergence() -> None:
    """A residual above one comes of a new batch as well."""
    v = outer_gradient(KNOWN)
    limits = ((1.5, Status.TRUNCATED), (0.9 * RUNAWAY, Status.TRUNCATED), (1.1 * RUNAWAY, Status.DIVERGING))
    for target, status in limits:
        start = torch.linalg.solve(KNOWN.hessian + DAMPING * EYE, (1 + target) * v)
        stats = hypergradient(KNOWN.problem, Amortized(0.1, DAMPING), check=False, start=start).stats
        assert stats.residual == pytest.approx(target)
        assert stats.status is status


def test_an_infinite_start_is_reported() -> None:
    start = torch.full((6,), math.inf, dtype=torch.float64)
    assert not hypergradient(KNOWN.problem, Amortized(), start=start).stats.usable


def test_the_solution_and_the_start_have_the_form_of_the_params() -> None:
    """The quadratic with its parameters in two pieces goes as it goes in one."""
    flat = KNOWN.problem
    pieces = {"a": flat.params[:2], "b": [flat.params[2:].reshape(2, 2)]}

    def joined(p: dict[str, Any]) -> Tensor:
        return torch.cat([p["a"], p["b"][0].flatten()])

    problem = dataclasses.replace(
        flat,
        params=pieces,
        inner=lambda t, p: flat.inner(joined(t), p),  # type: ignore[operator]
        outer=lambda t, p: flat.outer(joined(t), p),  # type: ignore[operator]
    )
    solver = Amortized(0.3, DAMPING)
    for whole, parts in zip(calls(flat, solver, 4), calls(problem, solver, 4), strict=True):
        assert list(parts.solution) == ["a", "b"]
        assert parts.solution["b"][0].shape == (2, 2)
        torch.testing.assert_close(joined(parts.solution), whole.solution)
        torch.testing.assert_close(parts.grads, whole.grads)


def test_noise_averages_out() -> None:
    """Validation batches give v and noise as long as it: the mean over calls points to the solution, that of v not.

    One solution is also less noisy than one v: it is a mean over about 1 / αc calls.
    """
    q, _ = closed_form(KNOWN, DAMPING)
    v = outer_gradient(KNOWN)
    problem, solver, generator = KNOWN.problem, Amortized(0.04, DAMPING), torch.Generator().manual_seed(0)

    def off(direction: Tensor, target: Tensor) -> float:
        return 1 - float(torch.cosine_similarity(direction, target, dim=0))

    solutions: list[Tensor] = []
    identities: list[Tensor] = []
    for _ in range(400):
        noise = torch.randn(6, generator=generator, dtype=torch.float64) * v.norm() / math.sqrt(6)

        def outer(t: Tensor, p: Tensor, noise: Tensor = noise) -> Tensor:
            value: Tensor = problem.outer(t, p) + noise @ t  # type: ignore[operator]
            return value

        noisy = dataclasses.replace(problem, outer=outer)
        start = solutions[-1] if solutions else None
        solutions.append(hypergradient(noisy, solver, check=False, start=start).solution)
        identities.append(v + noise)
    settled = slice(100, None)
    mean_solution, mean_identity = torch.stack(solutions[settled]).mean(0), torch.stack(identities[settled]).mean(0)
    assert off(mean_solution, q) < 0.01 < off(mean_identity, q)
    torch.testing.assert_close(mean_solution, q, rtol=0.1, atol=0.1 * float(q.norm()))
    single = torch.tensor(
        [[off(s, q), off(i, v)] for s, i in zip(solutions[settled], identities[settled], strict=True)]
    )
    assert single[:, 0].mean() < 0.25 * single[:, 1].mean()


@pytest.mark.parametrize("solver", [Neumann(3, 0.1), ConjugateGradient(3), Identity(0.1), Nystrom(2, 0.1), None])
def test_no_other_solver_takes_a_start(solver: LinearSolver | None) -> None:
    with pytest.raises(ValueError, match=r"only Deflated\(\), Amortized\(\) and Averaged\(\) go on from a start, got "):
        hypergradient(KNOWN.problem, solver, start=random(6, seed=30))


def test_a_start_must_hold_tensors() -> None:
    with pytest.raises(TypeError, match="start must hold floating-point tensors only, got int"):
        hypergradient(KNOWN.problem, Amortized(), start=[1])


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: Amortized(0.0), r"scale must be above 0, got 0\.0"),
        (lambda: Amortized(-1.0), r"scale must be above 0, got -1\.0"),
        (lambda: Amortized(math.nan), "scale must be above 0, got nan"),
        (lambda: Amortized(0.1, -0.01), r"damping must be at least 0, got -0\.01"),
        (lambda: Amortized(0.1, math.nan), "damping must be at least 0, got nan"),
    ],
)
def test_bad_knobs(build: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build()


def test_averages_forget_as_the_decay_says() -> None:
    v, start = (torch.tensor([1.0, -2.0]),), (torch.tensor([4.0, 4.0]),)
    solver = Averaged(scale=0.5, decay=0.75)
    assert torch.equal(solver.solve(_unused, v).vector[0], torch.tensor([0.5, -1.0]))
    found = solver.solve(_unused, v, start)
    torch.testing.assert_close(found.vector[0], torch.tensor([3 + 0.125, 3 - 0.25]))
    assert found.products == 0
    assert found.status is Status.TRUNCATED
    for settings in ({"scale": 0.0}, {"decay": 1.0}):
        with pytest.raises(ValueError, match=f"{next(iter(settings))} must be"):
            Averaged(**settings)


def _unused(direction: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    raise AssertionError("no product is needed")
