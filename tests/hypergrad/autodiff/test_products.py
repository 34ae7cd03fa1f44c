"""Second derivatives."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from madao.hypergrad import DoubleBackward, FiniteDifference, ForwardOverReverse, Traced
from madao.hypergrad.autodiff.products import SecondOrder
from madao.hypergrad.problem import detached
from tests.helpers.problems import joined, random

KINDS: list[SecondOrder] = [ForwardOverReverse(), DoubleBackward(), FiniteDifference(), Traced()]
every_kind = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: type(kind).__name__)


def loss(params: tuple[Tensor, ...], inputs: tuple[Tensor, ...]) -> Tensor:
    """Per example: not quadratic in anything."""
    weight, bias = params
    return (torch.tanh(inputs[0] @ weight) + bias).pow(3).sum(1) + inputs[0].prod(1)


PARAMS = (random(3, 2, seed=0), random(2, seed=1))
INPUTS = (random(5, 3, seed=2),)
DIRECTION = (random(3, 2, seed=3), random(2, seed=4))


@every_kind
def test_products_equal_the_dense_hessian(kind: SecondOrder) -> None:
    flat = joined(PARAMS)
    dense = torch.func.hessian(lambda t: loss((t[:6].reshape(3, 2), t[6:]), INPUTS).mean())(flat)
    product = kind.products(loss, PARAMS, INPUTS)
    for _ in range(2):  # the second product finds the first one's graph gone, or still there
        result = joined(product(DIRECTION))
        expected = dense @ joined(DIRECTION)
        torch.testing.assert_close(result, expected, rtol=1e-6, atol=1e-8)
        assert not result.requires_grad


@every_kind
def test_directional_equals_explicit_gradients(kind: SecondOrder) -> None:
    slope, gradient = kind.directional(loss, PARAMS, DIRECTION, detached(INPUTS, requires_grad=True))
    assert slope.shape == (5,)

    def explicit(x: Tensor) -> Tensor:
        values = []
        for b in range(5):
            gradients = torch.func.grad(lambda p, b=b: loss(p, (x,))[b])(PARAMS)
            values.append(sum((g * d).sum() for g, d in zip(gradients, DIRECTION, strict=True)))
        return torch.stack(values)

    torch.testing.assert_close(slope, explicit(INPUTS[0]), rtol=1e-7, atol=1e-8)
    expected = torch.func.grad(lambda x: explicit(x).mean())(INPUTS[0])
    torch.testing.assert_close(gradient[0], expected, rtol=1e-6, atol=1e-8)
    values, of_losses = kind.losses(loss, PARAMS, detached(INPUTS, requires_grad=True))
    torch.testing.assert_close(values, loss(PARAMS, INPUTS))
    torch.testing.assert_close(of_losses[0], torch.func.grad(lambda x: loss(PARAMS, (x,)).mean())(INPUTS[0]))
    calls = 0

    def counted(params: tuple[Tensor, ...], inputs: tuple[Tensor, ...]) -> Tensor:
        nonlocal calls
        calls += 1
        return loss(params, inputs)

    value, alone = kind.slopes(counted, PARAMS, DIRECTION, INPUTS)
    assert calls == (3 if isinstance(kind, FiniteDifference) else 1)  # losses are of the same pass
    torch.testing.assert_close(value, loss(PARAMS, INPUTS))
    torch.testing.assert_close(alone, slope)
    assert not value.requires_grad
    assert not alone.requires_grad


@every_kind
def test_a_scalar_loss_and_unused_tensors(kind: SecondOrder) -> None:
    unused = (*PARAMS, random(4, seed=9))

    def scalar(p: tuple[Tensor, ...], x: tuple[Tensor, ...]) -> Tensor:
        return loss(p[:2], x[:1]).mean()

    direction = (*DIRECTION, torch.ones(4, dtype=torch.float64))
    product = kind.products(scalar, unused, (*INPUTS, random(2, seed=5)))(direction)
    assert torch.equal(product[2], torch.zeros(4, dtype=torch.float64))
    inputs = detached((*INPUTS, random(2, seed=5)), requires_grad=True)
    slope, gradient = kind.directional(scalar, unused, direction, inputs)
    assert slope.shape == ()
    assert gradient[1] is not None
    assert torch.equal(gradient[1], torch.zeros(2, dtype=torch.float64))
    assert gradient[0] is not None
    assert gradient[0].any()


@every_kind
def test_inputs_without_requires_grad_have_no_gradient(kind: SecondOrder) -> None:
    """Not even if one exists, or if computing it would be an error."""
    labels, signs = torch.tensor([0, 1, 1, 0, 1]), torch.tensor([1.0, -1, 1, 1, -1], dtype=torch.float64)

    def of_labels(p: tuple[Tensor, ...], x: tuple[Tensor, ...]) -> Tensor:
        values = loss(p, (x[1],))
        if isinstance(kind, (DoubleBackward, FiniteDifference)):  # torch has no forward mode of this one
            values = values + F.soft_margin_loss(values, x[2], reduction="none")
        return values * (1 + x[0]) * x[3]

    (images,) = detached(INPUTS, requires_grad=True)
    weights = torch.full((5,), 0.3, dtype=torch.float64)
    given = (labels, images, signs, weights)
    slope, gradient = kind.directional(of_labels, PARAMS, DIRECTION, given)
    assert [part is None for part in gradient] == [True, False, True, True]
    alone = DoubleBackward().directional(
        lambda p, x: of_labels(p, (labels, x[0], signs, weights)), PARAMS, DIRECTION, (images,)
    )
    torch.testing.assert_close((slope, gradient[1]), (alone[0], alone[1][0]), rtol=1e-5, atol=1e-7)
    for _, found in (kind.losses(of_labels, PARAMS, given), kind.gradient(of_labels, PARAMS, given)):
        assert [part is None for part in found[-4:]] == [True, False, True, True]


def test_finite_difference_error_has_slope_two() -> None:
    exact = joined(ForwardOverReverse().products(loss, PARAMS, INPUTS)(DIRECTION))
    steps, errors = [1e-2, 1e-3], []
    for step in steps:
        result = FiniteDifference(step).products(loss, PARAMS, INPUTS)(DIRECTION)
        errors.append(float((joined(result) - exact).norm()))
    slope = math.log10(errors[0] / errors[1])
    assert slope == pytest.approx(2, abs=0.1)


def test_finite_difference_does_not_depend_on_the_length_of_the_direction() -> None:
    product = FiniteDifference().products(loss, PARAMS, INPUTS)
    once = product(DIRECTION)
    for factor in (1e-6, 1e6):
        scaled = product(tuple(factor * d for d in DIRECTION))
        torch.testing.assert_close(joined(scaled) / factor, joined(once), rtol=1e-7, atol=1e-9)
    assert not joined(product(tuple(torch.zeros_like(d) for d in DIRECTION))).any()
