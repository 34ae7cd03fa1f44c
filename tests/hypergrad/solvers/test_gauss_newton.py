"""Products with the Gauss-Newton matrix, and its inverse by conjugate gradients, against matrices written out."""

import dataclasses
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from madao.hypergrad import (
    ConjugateGradient,
    ForwardOverReverse,
    FunctionalModel,
    GaussNewton,
    Problem,
    Solution,
    Status,
    System,
    Traced,
    hypergradient,
)
from madao.hypergrad.autodiff.products import SecondOrder
from tests.helpers.problems import joined, parts, source

random = source(0)


@dataclasses.dataclass(frozen=True)
class Classified:
    """Cross-entropy of a network."""

    model: FunctionalModel
    names: tuple[str, ...]
    labels: Tensor = dataclasses.field(compare=False)

    def outputs(self, params: tuple[Tensor, ...], inputs: tuple[Tensor, ...]) -> Tensor:
        found: Tensor = self.model(dict(zip(self.names, params, strict=True)), inputs[0])
        return found

    def of_outputs(self, outputs: Tensor, inputs: tuple[Tensor, ...]) -> Tensor:
        return F.cross_entropy(outputs, self.labels, reduction="none")

    def __call__(self, params: tuple[Tensor, ...], inputs: tuple[Tensor, ...]) -> Tensor:
        return self.of_outputs(self.outputs(params, inputs), inputs)


class Network(nn.Module):
    """With two branches that join, so that a forward pass has something to share."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(2, 3, 3, padding=1), nn.BatchNorm2d(3)
        self.second, self.head = nn.Conv2d(3, 3, 3, padding=1), nn.Linear(3, 4)

    def forward(self, images: Tensor) -> Tensor:
        active = torch.tanh(self.norm(self.first(images)))
        outputs: Tensor = self.head((active + self.second(active)).mean((2, 3)))
        return outputs


def classified(mode: Any = "eval") -> tuple[Classified, tuple[Tensor, ...], tuple[Tensor, ...]]:
    torch.manual_seed(0)
    model = Network().double()
    model(random(20, 2, 5, 5))  # statistics that are not 0 and 1
    pure = FunctionalModel(model, mode)
    labels = torch.tensor([3, 0, 2, 1, 0, 2])
    return Classified(pure, tuple(pure.params), labels), tuple(pure.params.values()), (random(6, 2, 5, 5),)


def written_out(loss: Any, params: tuple[Tensor, ...], inputs: tuple[Tensor, ...]) -> Tensor:
    """The sum of Jᵀ (diag p − p pᵀ) J over examples, by their number."""
    outputs = loss.outputs(params, inputs).detach()
    jacobians = torch.func.jacrev(lambda p: loss.outputs(p, inputs))(tuple(p.detach() for p in params))
    jacobian = torch.cat([part.flatten(2) for part in jacobians], 2)
    total = torch.zeros(jacobian.shape[2], jacobian.shape[2], dtype=torch.float64)
    for rows, logits in zip(jacobian, outputs, strict=True):
        chance = logits.softmax(0)
        total += rows.T @ (torch.diag(chance) - chance[:, None] * chance) @ rows
    return total / len(outputs)


@pytest.mark.parametrize("mode", ["eval", "train"])
@pytest.mark.parametrize("second_order", [ForwardOverReverse(), Traced()])
def test_products_equal_those_of_the_matrix(second_order: SecondOrder, mode: str) -> None:
    loss, params, inputs = classified(mode)
    matrix = written_out(loss, params, inputs)
    product = second_order.gauss_newton(loss, params, inputs)
    for _ in range(2):
        direction = tuple(random(*part.shape) for part in params)
        torch.testing.assert_close(joined(product(direction)), matrix @ joined(direction))


def test_a_traced_product_shares_one_forward_pass() -> None:
    loss, params, inputs = classified()
    traced = Traced()
    traced.gauss_newton(loss, params, inputs)(tuple(map(torch.ones_like, params)))
    ((first, then),) = traced._made.values()
    targets = [[str(node.target) for node in g.graph.nodes if node.op == "call_function"] for g in (first, then)]
    # Two forward; two that are two each, the derivative in weights and in inputs; and two back.
    assert [sum("convolution" in target for target in part) for part in targets] == [2, 4]


def solved(matrix: Tensor, v: Tensor, solver: GaussNewton | ConjugateGradient) -> Solution:
    def product(direction: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return parts(matrix @ joined(direction))

    return solver.solve(System(parts(v), product, product))


def test_as_many_steps_as_dimensions_give_the_inverse() -> None:
    factor, v = random(10, 10), random(10)
    matrix = factor @ factor.T + 0.1 * torch.eye(10, dtype=torch.float64)
    found = solved(matrix, v, GaussNewton(20, damping=0, scale=None))
    torch.testing.assert_close(joined(found.vector), torch.linalg.solve(matrix, v), rtol=1e-6, atol=1e-8)
    assert found.status is Status.CONVERGED
    assert found.products == 20


@pytest.mark.parametrize("steps", [1, 2, 4])
@pytest.mark.parametrize("damping", [0.0, 0.3])
def test_fewer_steps_give_the_best_vector_of_the_krylov_space(steps: int, damping: float) -> None:
    factor, v = random(10, 7), random(10)
    matrix = factor @ factor.T
    found = solved(matrix, v, GaussNewton(steps, damping, scale=None))
    damped = matrix + damping * (matrix @ v).norm() / v.norm() * torch.eye(10, dtype=torch.float64)
    space = torch.linalg.qr(torch.stack([torch.linalg.matrix_power(damped, k) @ v for k in range(steps)], 1)).Q
    # Where ½ qᵀ A q − vᵀ q is least.
    best = space @ torch.linalg.solve(space.T @ damped @ space, space.T @ v)
    torch.testing.assert_close(joined(found.vector), best)
    assert found.norms.tolist()[-1] == pytest.approx(float((v - damped @ best).norm()))
    assert found.residual is not None
    assert float(found.residual) == pytest.approx(float((v - damped @ best).norm() / v.norm()))
    assert found.status is Status.TRUNCATED
    scaled = joined(solved(matrix, v, GaussNewton(steps, damping, scale=0.3)).vector)
    torch.testing.assert_close(scaled, 0.3 * v.norm() * best / best.norm())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_zero_vectors_and_flat_or_infinite_curvature_are_handled(dtype: torch.dtype) -> None:
    matrix, v = torch.eye(10, dtype=dtype), random(10).to(dtype)
    assert joined(solved(matrix, torch.zeros(10, dtype=dtype), GaussNewton()).vector).tolist() == [0.0] * 10
    flat = solved(0 * matrix, v, GaussNewton(scale=2.0))
    torch.testing.assert_close(joined(flat.vector), 2 * v)
    assert flat.status is Status.NEGATIVE_CURVATURE
    assert solved(matrix * torch.nan, v, GaussNewton()).status is Status.NON_FINITE


def test_steps_end_before_a_direction_without_positive_curvature() -> None:
    """As of `ConjugateGradient`, but without a wait."""
    ended = set()
    for _ in range(20):
        values, v = random(10), random(10)
        matrix = torch.diag(values.abs().where(torch.arange(10) != 3, -0.3))
        expected = solved(matrix, v, ConjugateGradient(8))
        found = solved(matrix, v, GaussNewton(8, damping=0, scale=None))
        torch.testing.assert_close(joined(found.vector), joined(expected.vector))
        assert found.status is expected.status
        ended.add(expected.products)
    assert len(ended) > 3  # early ones and late ones
    assert solved(-matrix.abs(), v, GaussNewton(8, 0, None)).vector[0].tolist() == parts(v)[0].tolist()


class Fitted:
    """½ ‖A θ − φ‖², whose minimum is A⁻¹ φ."""

    def __init__(self, matrix: Tensor) -> None:
        self.matrix = matrix

    def outputs(self, params: Tensor, inputs: Tensor) -> Tensor:
        return self.matrix @ params

    def of_outputs(self, outputs: Tensor, inputs: Tensor) -> Tensor:
        return 0.5 * (outputs - inputs).square().sum()

    def __call__(self, params: Tensor, inputs: Tensor) -> Tensor:
        return self.of_outputs(self.outputs(params, inputs), inputs)


@pytest.mark.parametrize("weight_decay", [0.0, 0.7])
def test_the_gradient_of_a_least_squares_problem_is_exact(weight_decay: float) -> None:
    matrix, target, hyper = random(4, 4), random(4), random(4)
    inverse = torch.linalg.inv(matrix.T @ matrix + weight_decay * torch.eye(4, dtype=torch.float64))
    params = inverse @ matrix.T @ hyper
    problem = Problem(
        params=params,
        hyper=hyper.requires_grad_(),
        inner=Fitted(matrix),
        outer=lambda p, _: 0.5 * (p - target).square().sum(),
        weight_decay=weight_decay,
    )
    found = hypergradient(problem, GaussNewton(12, damping=0, scale=None))
    torch.testing.assert_close(found.grads, matrix @ inverse @ (params - target))
    assert found.stats.products == 12
    assert found.stats.residual is not None
    assert found.stats.residual < 1e-6


def test_a_loss_without_outputs_raises() -> None:
    hyper = random(4).requires_grad_()
    problem = Problem(random(4), hyper, lambda p, h: (p - h).square().sum(), lambda p, _: p.sum())
    with pytest.raises(ValueError, match="outputs"):
        hypergradient(problem, GaussNewton())


@pytest.mark.parametrize("more", [None, torch.arange(4)])
def test_outputs_without_a_derivative_raise(more: Any) -> None:
    class Both(Fitted):
        def outputs(self, params: Tensor, inputs: Tensor) -> Any:
            return {"out": self.matrix @ params, "more": more}

        def of_outputs(self, outputs: Any, inputs: Tensor) -> Tensor:
            return super().of_outputs(outputs["out"], inputs)

    problem = Problem(random(4), random(4).requires_grad_(), Both(random(4, 4)), lambda p, _: p.sum())
    with pytest.raises(ValueError, match="NoneType" if more is None else r"torch\.int64"):
        hypergradient(problem, GaussNewton())
