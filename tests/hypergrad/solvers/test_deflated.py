"""Deflated against its formula written out."""

import pytest
import torch
from torch import Tensor

from madao.hypergrad import Deflated, Identity, Problem, Solution, Status, System, hypergradient
from madao.hypergrad.solvers.deflated import solve_positive
from madao.hypergrad.solvers.gradient_history import GradientHistory
from tests.helpers.problems import joined, parts, quadratic, source

random = source(0)


def fed(solver: Deflated, v: Tensor, gradients: list[Tensor]) -> tuple[Solution, Tensor]:
    """Solve once for each gradient; return the last solution and the rows remembered then."""
    state = solver.prepare(None, parts(v), check=False)
    for gradient in gradients:
        found = solver.solve(system(v, gradient), state)
        state.add(found.carry)
    return found, state.rows


def system(v: Tensor, gradient: Tensor) -> System:
    return System(parts(v), gradient=lambda: parts(gradient))


def written_out(v: Tensor, gradients: list[Tensor], damping: float) -> Tensor:
    """(I + GGᵀ/λ)⁻¹ v, which equals the formula by the Woodbury identity."""
    units = torch.stack([gradient / gradient.norm() for gradient in gradients])
    solved: Tensor = torch.linalg.solve(torch.eye(len(v), dtype=v.dtype) + units.T @ units / damping, v)
    return solved


@pytest.mark.parametrize("damping", [1e-4, 0.01, 1.0])
@pytest.mark.parametrize("count", [1, 2, 5])
def test_deflated_equals_the_inverse_written_out(count: int, damping: float) -> None:
    v, gradients = random(10), [3.0 * random(10) for _ in range(count)]
    found, _ = fed(Deflated(memory=5, scale=0.3, damping=damping), v, gradients)
    torch.testing.assert_close(joined(found.vector), 0.3 * written_out(v, gradients, damping))
    assert [p.shape for p in found.vector] == [(2, 3), (4,)]
    assert found.status is Status.DIRECT
    assert found.norms.tolist() == pytest.approx([float(v.norm()), float(written_out(v, gradients, damping).norm())])


def test_the_result_does_not_depend_on_the_size_of_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    given, state = system(random(10), random(10)), GradientHistory(random(2, 10))
    whole = Deflated(memory=3).solve(given, state).vector
    for size in (1, 3, 5, 9):
        monkeypatch.setattr("madao.hypergrad.solvers.deflated._PART", size)
        torch.testing.assert_close(Deflated(memory=3).solve(given, state).vector, whole)


def test_the_oldest_gradients_are_forgotten() -> None:
    v, gradients = random(10), [random(10) for _ in range(7)]
    found, _ = fed(Deflated(memory=3), v, gradients)
    torch.testing.assert_close(joined(found.vector), written_out(v, gradients[-3:], 0.01))


def test_a_gradient_of_zero_removes_nothing() -> None:
    v = random(10)
    found = Deflated(memory=2).solve(system(v, torch.zeros(10, dtype=torch.float64)))
    torch.testing.assert_close(joined(found.vector), v)


def test_the_same_gradient_again_and_again_does_no_harm() -> None:
    v, gradient = random(10), random(10)
    found, _ = fed(Deflated(memory=4, damping=1e-6), v, 6 * [gradient])
    q = joined(found.vector)
    assert abs(float(q @ gradient)) < 1e-5 * float(v.norm() * gradient.norm())
    assert torch.isfinite(q).all()


def test_the_hypergradient_follows_from_q() -> None:
    """The training gradient includes weight decay."""
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
    again = hypergradient(problem, Deflated(memory=3), state=found.state)
    torch.testing.assert_close(again.solution, written_out(v, [gradient, gradient], 0.01))


def test_single_precision_is_remembered_in_half() -> None:
    v, gradients = random(10).float(), [random(10).float() for _ in range(4)]
    found, recent = fed(Deflated(memory=4, damping=0.1), v, gradients)
    assert recent.shape == (3, 10)
    assert recent.dtype == torch.bfloat16
    assert found.vector[0].dtype == torch.float32
    units = [(gradient / gradient.norm()).bfloat16().double() for gradient in gradients[:-1]]
    rows = torch.stack([*units, (gradients[-1] / gradients[-1].norm()).double()])
    weights = torch.linalg.solve(rows @ rows.T + 0.1 * torch.eye(4, dtype=torch.float64), rows @ v.double())
    left = joined(found.vector).double()
    torch.testing.assert_close(left, v.double() - weights @ rows, rtol=1e-5, atol=1e-6)


def test_with_a_memory_of_one_only_the_gradient_of_the_call_counts() -> None:
    v, gradients = random(10), [random(10) for _ in range(2)]
    for count in (1, 2):
        found, recent = fed(Deflated(memory=1), v, gradients[:count])
        assert recent.shape == (0, 10)
    torch.testing.assert_close(joined(found.vector), written_out(v, gradients[1:], 0.01))


def test_half_precision_is_computed_in_single() -> None:
    v, gradients = random(10).bfloat16(), [random(10).bfloat16() for _ in range(8)]
    found, _ = fed(Deflated(memory=8, damping=1e-3), v, gradients)
    assert found.vector[0].dtype == torch.bfloat16
    expected = written_out(v.double(), [gradient.double() for gradient in gradients], 1e-3)
    left = joined(found.vector).double()
    assert float((left - expected).norm() / expected.norm()) < 0.01


def test_the_state_of_another_solver_raises() -> None:
    known = quadratic()
    state = hypergradient(known.problem, Deflated(memory=3)).state
    with pytest.raises(ValueError, match=r"\[3, .*\[2, "):
        hypergradient(known.problem, Deflated(memory=4), state=state)
    with pytest.raises(ValueError, match="state"):
        hypergradient(known.problem, Identity(), state=state)
    assert hypergradient(known.problem, Identity()).state is None


@pytest.mark.parametrize("size", [1, 2, 9])
def test_small_systems_are_solved(size: int) -> None:
    root, right = random(size, size), random(size)
    matrix = root @ root.T + 0.01 * torch.eye(size, dtype=torch.float64)
    before = matrix.clone()
    torch.testing.assert_close(solve_positive(matrix, right), torch.linalg.solve(matrix, right), rtol=1e-8, atol=1e-8)
    assert torch.equal(matrix, before)
