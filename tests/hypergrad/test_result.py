"""The health of a hypergradient."""

import dataclasses
import math
from typing import Any

import pytest
import torch
from torch import Tensor

from madao.hypergrad import (
    ConjugateGradient,
    ForwardOverReverse,
    Identity,
    Momentum,
    Neumann,
    Nystrom,
    Problem,
    Solver,
    Status,
    Unrolled,
    hypergradient,
    pytree,
)


def curved(*curvatures: float, outer_scale: float = 1.0) -> Problem:
    """F = ½ Σ λ_i (θ_i − φ_i)², g = Σ θ: the hypergradient is one in every φ_i."""
    diagonal = torch.tensor(curvatures, dtype=torch.float64)
    zero = torch.zeros_like(diagonal)
    return Problem(
        zero,
        zero,
        lambda t, p: 0.5 * (diagonal * (t - p).square()).sum(),
        lambda t, _: outer_scale * t.sum(),
    )


def status(problem: Problem, solver: Solver) -> Status:
    return hypergradient(problem, solver).stats.status


def test_neumann_converges_is_truncated_or_diverges() -> None:
    assert status(curved(1.0, 2.0), Neumann(60, 0.5)) is Status.CONVERGED
    assert status(curved(1.0, 2.0), Neumann(5, 1e-3)) is Status.TRUNCATED
    assert status(curved(1.0, 50.0), Neumann(5, 0.1)) is Status.DIVERGING
    assert status(curved(-30.0, -40.0), Neumann(10, 1e-2)) is Status.DIVERGING
    # Networks have a slight negative curvature everywhere; over few short steps it does no harm.
    assert status(curved(-1.0, 5.0), Neumann(5, 1e-3)) is Status.TRUNCATED
    assert not Status.DIVERGING.usable
    assert "smaller scale" in Status.DIVERGING.value


def test_conjugate_gradient_meets_negative_curvature() -> None:
    result = hypergradient(curved(-1.0, -2.0), ConjugateGradient(steps=2))
    assert result.stats.status is Status.NEGATIVE_CURVATURE
    assert result.stats.usable
    assert torch.isfinite(result.grads).all()
    assert status(curved(-1.0, 2.0), ConjugateGradient(steps=2, damping=1.5)) is not Status.NEGATIVE_CURVATURE
    assert status(curved(1.0, 2.0), ConjugateGradient(steps=2)) is Status.CONVERGED
    assert status(curved(1.0, 2.0, 3.0), ConjugateGradient(steps=1)) is Status.TRUNCATED


@pytest.mark.parametrize("solver", [Neumann(3, 0.1), ConjugateGradient(3), Identity(), Nystrom(2)])
@pytest.mark.parametrize("scale", [math.inf, math.nan])
def test_gradients_that_are_not_finite_are_unusable(solver: Solver, scale: float) -> None:
    result = hypergradient(curved(1.0, 2.0, outer_scale=scale), solver)
    assert result.stats.status is Status.NON_FINITE
    assert not result.stats.usable


def test_infinite_curvature_is_not_finite() -> None:
    def inner(t: Tensor, p: Tensor) -> Tensor:
        return (t - p).abs().pow(1.5).sum()  # infinite curvature where θ = φ

    problem = Problem(torch.zeros(2), torch.zeros(2), inner, lambda t, _: t.sum())
    assert status(problem, Neumann(3, 0.1)) is Status.NON_FINITE


def test_stats_are_the_numbers_of_the_series() -> None:
    result = hypergradient(curved(1.0, 4.0), Neumann(1, 0.1))
    stats = result.stats
    # terms: (1, 1), then (0.9, 0.6); q = 0.1 · (1.9, 1.6); v − H q = (0.81, 0.36)
    assert stats.v_norm == pytest.approx(math.sqrt(2))
    assert stats.term_norms == pytest.approx([math.sqrt(2), math.hypot(0.9, 0.6)])
    assert stats.q_norm == pytest.approx(0.1 * math.hypot(1.9, 1.6))
    assert stats.residual == pytest.approx(math.hypot(0.81, 0.36) / math.sqrt(2))
    assert stats.grad_norm == pytest.approx(math.hypot(0.19, 0.64))
    assert stats.outer_loss == 0
    assert stats.products == 2
    unchecked = hypergradient(curved(1.0, 4.0), Neumann(1, 0.1), check=False).stats
    assert unchecked.residual is None
    assert unchecked.products == 1


def test_a_runaway_is_never_usable() -> None:
    # At the minimum already: the path stands still while its derivative runs away.
    still = hypergradient(curved(1.0, 100.0), Unrolled(20, Momentum(0.1)))
    assert still.stats.status is Status.DIVERGING
    assert hypergradient(curved(1.0, 100.0), Unrolled(20, Momentum(0.01))).stats.usable
    away = dataclasses.replace(curved(1.0, 100.0), params=torch.ones(2, dtype=torch.float64))
    assert hypergradient(away, Unrolled(20, Momentum(0.1))).stats.status is Status.DIVERGING
    singular = hypergradient(curved(1.0, -0.5 + 1e-9), Nystrom(2, damping=0.5), check=False)
    assert singular.stats.status is Status.DIVERGING


def test_a_measured_residual_overrides_the_solver() -> None:
    def flat(v: Tensor, diagonal: Tensor) -> Problem:
        zero = torch.zeros_like(diagonal)
        return Problem(zero, zero, lambda t, p: 0.5 * (diagonal * (t - p).square()).sum(), lambda t, _: (v * t).sum())

    # The last term is short and the solution far: one direction is done at once, the other hardly begun.
    almost = flat(torch.tensor([1.0, 0.02]), torch.tensor([1.0, 1e-4]))
    assert status(almost, Neumann(1, 1.0)) is Status.TRUNCATED
    generator = torch.Generator().manual_seed(0)
    stiff = flat(torch.randn(60, generator=generator), torch.logspace(-6, 0, 60))
    result = hypergradient(stiff, ConjugateGradient(400, tolerance=1e-3))
    true = result.stats.residual
    assert true is not None
    assert (result.stats.status is Status.CONVERGED) == (true <= 1e-3)


def test_nothing_to_do_is_converged() -> None:
    stats = hypergradient(curved(1.0, 2.0, outer_scale=0.0), Neumann(2, 0.1)).stats
    assert (stats.status, stats.residual) == (Status.CONVERGED, 0.0)


def test_half_precision_lengths_do_not_underflow() -> None:
    small = (torch.full((2,), 1e-4, dtype=torch.float16),)
    assert float(pytree.dot(small, small)) == pytest.approx(2e-8, rel=1e-2)


def test_every_status_says_what_to_do() -> None:
    for each in Status:
        assert len(each.value) > 20


def test_a_product_that_is_nan_makes_the_result_unusable() -> None:
    """Even if only the check meets it. It does not matter to a solution without products."""
    calls = 0

    class Spoiled(ForwardOverReverse):
        def products(self, *arguments: Any) -> Any:
            product = super().products(*arguments)

            def run(direction: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
                nonlocal calls
                calls += 1
                return tuple(part * (math.nan if calls == 3 else 1) for part in product(direction))

            return run

    params, hyper = torch.ones(3, dtype=torch.float64), torch.ones(3, dtype=torch.float64, requires_grad=True)
    problem = Problem(params, hyper, lambda p, h: (p * p * h).sum(), lambda p, _: p.sum())
    stats = hypergradient(problem, Neumann(2, 0.1), hvp=Spoiled()).stats
    assert calls == 3
    assert stats.residual is not None
    assert math.isnan(stats.residual)
    assert not stats.usable
    calls = 2
    assert hypergradient(problem, Identity(0.1), hvp=Spoiled()).stats.usable


@pytest.mark.parametrize("value", [1e-24, 1e20])
def test_norms_keep_the_range_of_float64(value: float) -> None:
    assert float(pytree.norm((torch.full((4,), value),))) == pytest.approx(2 * value, rel=1e-6)
    assert pytree.norm((torch.ones(4), torch.ones(12, dtype=torch.float64))).dtype == torch.float64
    assert float(pytree.norm((torch.full((2**12,), 1.0, dtype=torch.bfloat16),))) == 64
