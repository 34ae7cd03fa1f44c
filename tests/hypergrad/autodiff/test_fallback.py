"""Models that torch cannot differentiate in forward mode, or not twice."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from madao import Policy
from madao.hypergrad import DoubleBackward, FiniteDifference, ForwardOverReverse, GaussNewton, Neumann, Relaxed
from madao.hypergrad.autodiff.fallback import Fallback
from madao.hypergrad.autodiff.products import SecondOrder
from madao.outer import ComputeOptions, PolicyOptimizer
from tests.helpers.outer_steps import TRAIN, VALIDATION
from tests.helpers.reverse_only import PlainSquare, Square

IMAGES, LABELS = TRAIN[0].double(), TRAIN[1]


def network(square: nn.Module) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(1, 4, 3), square, nn.Flatten(), nn.Linear(144, 3)).double()


SETTINGS: dict[str, dict[str, Any]] = {
    "influence": {},
    "relaxed": {"estimator": Relaxed(), "solver": Neumann(steps=2, scale=1e-2)},
    "gauss-newton": {"solver": GaussNewton(steps=2)},
}


def gradient(model: nn.Module, hvp: SecondOrder, settings: str) -> tuple[Tensor, ...]:
    outer = PolicyOptimizer(
        Policy().double(), model, compute=ComputeOptions(hvp=hvp, pathwise_batch=8), **SETTINGS[settings]
    )
    found, stats = outer.gradient((IMAGES, LABELS), (VALIDATION[0].double(), VALIDATION[1]))
    assert stats.usable
    return found


@pytest.mark.parametrize("settings", SETTINGS)
def test_every_kind_of_derivative_agrees_where_forward_mode_works(settings: str) -> None:
    expected = gradient(network(PlainSquare()), ForwardOverReverse(), settings)
    torch.testing.assert_close(
        gradient(network(PlainSquare()), DoubleBackward(), settings), expected, rtol=1e-9, atol=1e-14
    )
    if settings != "gauss-newton":  # which finite differences do not have
        found = gradient(network(PlainSquare()), FiniteDifference(), settings)
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-9)


@pytest.mark.parametrize("settings", SETTINGS)
def test_forward_mode_stays_where_it_works(settings: str) -> None:
    lines: list[str] = []
    fallback = Fallback(lines.append)
    found = gradient(network(PlainSquare()), fallback, settings)
    for one, other in zip(found, gradient(network(PlainSquare()), ForwardOverReverse(), settings), strict=True):
        assert torch.equal(one, other)
    assert fallback.kind == ForwardOverReverse()
    assert not lines


@pytest.mark.parametrize("settings", SETTINGS)
def test_models_without_forward_mode_are_differentiated_backwards_twice(settings: str) -> None:
    lines: list[str] = []
    fallback = Fallback(lines.append)
    found = gradient(network(Square()), fallback, settings)
    assert fallback.kind == DoubleBackward()
    assert len(lines) == 1
    expected = gradient(network(PlainSquare()), ForwardOverReverse(), settings)
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-14)


@pytest.mark.parametrize("settings", ["influence", "relaxed"])
def test_models_without_second_derivatives_take_finite_differences(settings: str) -> None:
    lines: list[str] = []
    fallback = Fallback(lines.append)
    found = gradient(network(Square(once=True)), fallback, settings)
    assert fallback.kind == FiniteDifference()
    assert len(lines) == 1
    expected = gradient(network(PlainSquare()), ForwardOverReverse(), settings)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-9)


def test_policy_optimizer_falls_back_by_itself(caplog: pytest.LogCaptureFixture) -> None:
    outer = PolicyOptimizer(Policy().double(), network(Square()), every=1)
    for _ in range(2):
        step = outer.step((IMAGES, LABELS), (VALIDATION[0].double(), VALIDATION[1]))
        assert step is not None
        assert step.applied
    assert len(caplog.records) == 1


def test_an_error_that_no_kind_avoids_is_raised() -> None:
    def loss(params: tuple[Tensor, ...], inputs: tuple[Tensor, ...]) -> Tensor:
        raise RuntimeError("shapes do not match")

    lines: list[str] = []
    fallback = Fallback(lines.append)
    with pytest.raises(RuntimeError, match="shapes do not match"):
        fallback.slopes(loss, (torch.ones(1),), (torch.ones(1),), ())
    assert fallback.kind == ForwardOverReverse()
    assert not lines


def test_an_error_after_a_success_is_raised() -> None:
    def broken(params: tuple[Tensor, ...], inputs: tuple[Tensor, ...]) -> Tensor:
        raise NotImplementedError("later")

    fallback = Fallback(lambda _: None)
    point = (torch.ones(1),)
    fallback.slopes(lambda params, inputs: params[0].square().sum(), point, point, ())
    with pytest.raises(NotImplementedError, match="later"):
        fallback.slopes(broken, point, point, ())
    assert fallback.kind == ForwardOverReverse()


def test_out_of_memory_is_raised() -> None:
    def loss(params: tuple[Tensor, ...], inputs: tuple[Tensor, ...]) -> Tensor:
        if params[0].requires_grad:
            return params[0].sum()
        raise torch.OutOfMemoryError("no memory")

    with pytest.raises(torch.OutOfMemoryError):
        Fallback(lambda _: None).slopes(loss, (torch.ones(1),), (torch.ones(1),), ())


def test_finite_differences_leave_half_precision() -> None:
    model = network(PlainSquare()).float()
    images, validation = (IMAGES.float(), LABELS), (VALIDATION[0], VALIDATION[1])

    def found(hvp: SecondOrder, autocast: torch.dtype | None) -> Tensor:
        compute = ComputeOptions(hvp=hvp, autocast=autocast)
        outer = PolicyOptimizer(Policy(), model, compute=compute, estimator=Relaxed(), solver=Neumann(2, 1e-2))
        return torch.cat([part.flatten() for part in outer.gradient(images, validation)[0]])

    expected = found(ForwardOverReverse(), None)
    assert F.cosine_similarity(found(FiniteDifference(), torch.bfloat16), expected, dim=0) > 0.99
