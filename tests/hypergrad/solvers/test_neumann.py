"""The Neumann series by powers of the Hessian, and the powers that can be left out."""

import math

import pytest
import torch
from torch import Tensor

from madao.hypergrad import Neumann, Status, System
from madao.hypergrad.pytree import Vector
from madao.hypergrad.solvers.neumann import needed_powers

CURVATURES = torch.tensor([0.1, 0.5, 1.0, 3.0], dtype=torch.float64)
V = (torch.tensor([1.0, -2.0, 0.5, 1.5], dtype=torch.float64),)


def diagonal(direction: Vector) -> Vector:
    return (CURVATURES * direction[0],)


def relative(found: Vector, expected: Vector) -> float:
    return float((found[0] - expected[0]).norm() / expected[0].norm())


@pytest.mark.parametrize("scale", [0.01, 0.3, 0.6])
@pytest.mark.parametrize("steps", [1, 5, 8])
def test_the_sum_of_all_powers_equals_the_series(steps: int, scale: float) -> None:
    series = Neumann(steps, scale)
    expected, found = series.solve(System(V, diagonal)), series.solve(System(V, diagonal), steps)
    assert relative(found.vector, expected.vector) < 1e-12
    assert found.residual is not None
    assert found.products == steps + 1
    left = V[0] - diagonal(expected.vector)[0]
    assert float(found.residual) == pytest.approx(float(left.norm() / V[0].norm()), rel=1e-9)
    assert found.status.usable
    some = series.solve(System(V, diagonal), steps - 1)
    assert (some.products, some.residual) == (steps - 1, None)


@pytest.mark.parametrize(("scale", "sign"), [(0.8, 1), (2.0, 1), (0.3, -1)])
def test_a_diverging_series_diverges_by_powers_too(scale: float, sign: float) -> None:
    system = System(V, lambda direction: (sign * CURVATURES * direction[0],))
    for powers in ((), (5,)):
        assert Neumann(5, scale).solve(system, *powers).status is Status.DIVERGING


def test_a_last_summand_that_is_not_small_counts_as_diverging() -> None:
    assert Neumann(5, 0.01).solve(System(V, diagonal), 1).status is Status.TRUNCATED
    assert Neumann(5, 10.0).solve(System(V, diagonal), 1).status is Status.DIVERGING


@pytest.mark.parametrize("scale", [1e-4, 1e-3, 0.01, 0.03])
@pytest.mark.parametrize("tolerance", [1e-6, 1e-3, 0.01, 0.1])
def test_the_error_is_within_the_tolerance_and_near_it(scale: float, tolerance: float) -> None:
    series = Neumann(5, scale, tolerance)
    exact = series.solve(System(V, diagonal)).vector
    lengths = series.solve(System(V, diagonal), 5).norms.tolist()
    count = needed_powers(lengths, tolerance)
    assert count is not None
    assert relative(series.solve(System(V, diagonal), count).vector, exact) <= tolerance
    if count > 0:  # the bound is not far from what it bounds
        assert relative(series.solve(System(V, diagonal), count - 1).vector, exact) > tolerance / 2


def test_no_power_is_left_out_if_summands_may_cancel() -> None:
    lengths = Neumann(5, 0.3).solve(System(V, diagonal), 5).norms.tolist()
    assert needed_powers(lengths, 0.1) is None
    assert needed_powers([math.nan, 1.0], 0.1) is None


def test_only_short_series_with_a_tolerance_are_shortened() -> None:
    assert Neumann(8, 1e-3, 0.01).shortens
    assert not Neumann(9, 1e-3, 0.01).shortens
    assert not Neumann(0, 1e-3, 0.01).shortens
    assert not Neumann(5, 1e-3).shortens


def test_the_longest_series_by_powers_is_exact_enough_in_single_precision() -> None:
    """At the edge of convergence, where summands cancel most."""
    v = (V[0].float(),)

    def hardest(direction: Vector) -> Vector:
        curvature: Tensor = (CURVATURES / CURVATURES.max()).to(direction[0].dtype)
        return (curvature * direction[0],)

    series = Neumann(8, 1.99)
    exact = series.solve(System(V, hardest)).vector
    assert relative(series.solve(System(v, hardest), 8).vector, exact) < 1e-3
