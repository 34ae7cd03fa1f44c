"""The outer gradient without its part along training gradients, against the formula written out."""

import math

import pytest
import torch
from torch import Tensor

from madao.hypergrad import Deflated, Problem, Status, hypergradient
from madao.hypergrad.deflated import solve_positive
from tests.hypergrad.problems import quadratic

GENERATOR = torch.Generator().manual_seed(0)


def random(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=GENERATOR, dtype=torch.float64)


def parts(flat: Tensor) -> tuple[Tensor, ...]:
    """As two parameters."""
    return flat[:6].reshape(2, 3), flat[6:]


def written_out(v: Tensor, gradients: list[Tensor], damping: float) -> Tensor:
    """(I + GGᵀ/λ)⁻¹ v, which is what the formula is by the identity of Woodbury."""
    units = torch.stack([gradient / gradient.norm() for gradient in gradients])
    solved: Tensor = torch.linalg.solve(torch.eye(len(v), dtype=v.dtype) + units.T @ units / damping, v)
    return solved


@pytest.mark.parametrize("damping", [1e-4, 0.01, 1.0])
@pytest.mark.parametrize("count", [1, 2, 5])
def test_it_is_the_inverse_written_out(count: int, damping: float) -> None:
    v, gradients = random(10), [3.0 * random(10) for _ in range(count)]
    solver, start = Deflated(memory=5, scale=0.3, damping=damping), None
    for gradient in gradients:
        found = solver.solve(parts(v), parts(gradient), start)
        start = found.carried
    torch.testing.assert_close(torch.cat([p.flatten() for p in found.vector]), 0.3 * written_out(v, gradients, damping))
    assert [p.shape for p in found.vector] == [(2, 3), (4,)]
    assert found.status is Status.TRUNCATED
    assert found.norms.tolist() == pytest.approx([float(v.norm()), float(written_out(v, gradients, damping).norm())])


def test_of_more_gradients_than_it_remembers_the_oldest_are_forgotten() -> None:
    v, gradients = random(10), [random(10) for _ in range(7)]
    solver, start = Deflated(memory=3), None
    for gradient in gradients:
        found = solver.solve(parts(v), parts(gradient), start)
        start = found.carried
    torch.testing.assert_close(torch.cat([p.flatten() for p in found.vector]), written_out(v, gradients[-3:], 0.01))


def test_what_training_achieves_by_itself_is_taken_out() -> None:
    """The part of v along the inner gradient is λ / (1 + λ) of what it was; the rest stays."""
    along, across = torch.eye(10, dtype=torch.float64)[:2]
    (first, second) = Deflated(memory=4, damping=0.01).solve(parts(50 * along + across), parts(-7 * along)).vector
    left = torch.cat([first.flatten(), second])
    torch.testing.assert_close(left, 50 * 0.01 / 1.01 * along + across)


def test_a_gradient_of_zero_takes_nothing_out() -> None:
    v = random(10)
    found = Deflated(memory=2).solve(parts(v), parts(torch.zeros(10, dtype=torch.float64)))
    torch.testing.assert_close(torch.cat([p.flatten() for p in found.vector]), v)


def test_the_same_gradient_again_and_again_does_no_harm() -> None:
    v, gradient = random(10), random(10)
    solver, start = Deflated(memory=4, damping=1e-6), None
    for _ in range(6):
        found = solver.solve(parts(v), parts(gradient), start)
        start = found.carried
    q = torch.cat([p.flatten() for p in found.vector])
    assert abs(float(q @ gradient)) < 1e-5 * float(v.norm() * gradient.norm())
    assert torch.isfinite(q).all()


def test_a_hypergradient_by_it_is_that_of_its_q() -> None:
    """With the gradient of the inner loss at θ, its weight decay included."""
    known = quadratic()
    theta, phi = known.problem.params + 0.3, known.problem.hyper
    problem = Problem(params=theta, hyper=phi, inner=known.problem.inner, outer=known.problem.outer, weight_decay=0.7)
    v = torch.func.grad(known.problem.outer)(theta, phi)  # type: ignore[arg-type]
    gradient = torch.func.grad(known.problem.inner)(theta, phi) + 0.7 * theta  # type: ignore[arg-type]
    mixed = torch.func.jacrev(torch.func.grad(known.problem.inner), argnums=1)(theta, phi)  # type: ignore[arg-type]
    direct = torch.func.grad(known.problem.outer, argnums=1)(theta, phi)  # type: ignore[arg-type]
    found = hypergradient(problem, Deflated(memory=3))
    q = written_out(v, [gradient], 0.01)
    torch.testing.assert_close(found.solution, q)
    torch.testing.assert_close(found.grads, direct - mixed.T @ q)
    assert found.stats.products == 0
    assert found.stats.residual is None
    again = hypergradient(problem, Deflated(memory=3), start=found.carried)
    torch.testing.assert_close(again.solution, written_out(v, [gradient, gradient], 0.01))


def test_half_precision_is_computed_with_in_single() -> None:
    v, gradients = random(10).bfloat16(), [random(10).bfloat16() for _ in range(8)]
    solver, start = Deflated(memory=8, damping=1e-3), None
    for gradient in gradients:
        found = solver.solve(parts(v), parts(gradient), start)
        start = found.carried
    assert found.vector[0].dtype == torch.bfloat16
    expected = written_out(v.double(), [gradient.double() for gradient in gradients], 1e-3)
    left = torch.cat([p.flatten() for p in found.vector]).double()
    assert float((left - expected).norm() / expected.norm()) < 0.01


def test_a_start_of_another_shape_is_refused() -> None:
    known = quadratic()
    carried = hypergradient(known.problem, Deflated(memory=3)).carried
    with pytest.raises(ValueError, match="start does not belong to these params"):
        hypergradient(known.problem, Deflated(memory=4), start=carried)


@pytest.mark.parametrize("size", [1, 2, 9])
def test_small_systems_are_solved(size: int) -> None:
    root, right = random(size, size), random(size)
    matrix = root @ root.T + 0.01 * torch.eye(size, dtype=torch.float64)
    before = matrix.clone()
    torch.testing.assert_close(solve_positive(matrix, right), torch.linalg.solve(matrix, right), rtol=1e-8, atol=1e-8)
    assert torch.equal(matrix, before)


@pytest.mark.parametrize(
    "settings", [{"memory": 0}, {"scale": 0.0}, {"damping": 0.0}, {"damping": -1.0}, {"scale": math.nan}]
)
def test_what_makes_no_sense_is_refused(settings: dict[str, float]) -> None:
    (name,) = settings
    with pytest.raises(ValueError, match=f"{name} must be"):
        Deflated(**settings)  # type: ignore[arg-type]
