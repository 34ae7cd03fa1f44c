"""Whether gradients agree as far as rounding lets them."""

import pytest
import torch
from torch import nn

from madao.hypergrad.pytree import Vector
from madao.outer.gradient_check import disagreement

GRADIENT = (torch.tensor([3.0, 4.0]),)


def of_the_weights(model: nn.Linear, sensitivity: float) -> Vector:
    """A gradient that changes by `sensitivity` times the relative change of the weights, added to a large part."""
    return (GRADIENT[0] + sensitivity * (model.weight.detach().double().sum() - float(sum(range(8)))).float(),)


@pytest.fixture
def model() -> nn.Linear:
    model = nn.Linear(4, 2, bias=False)
    with torch.no_grad():
        model.weight.copy_(torch.arange(8.0).reshape(2, 4))
    return model


def times(factor: float) -> Vector:
    return (factor * GRADIENT[0],)


def test_what_is_near_agrees_and_the_weights_are_left_alone(model: nn.Linear) -> None:
    asked = []

    def reference() -> Vector:
        asked.append(model.weight.clone())
        return GRADIENT

    assert disagreement(times(1.019), reference, model) is None
    assert len(asked) == 1
    before = model.weight.clone()
    assert disagreement(times(1.03), reference, model) == pytest.approx(0.03, rel=1e-3)
    assert len(asked) == 3
    assert 0 < (asked[2] / before - 1).nan_to_num().abs().max() <= torch.finfo(torch.float32).eps
    assert torch.equal(model.weight, before)


def test_what_rounding_explains_agrees_up_to_a_limit(model: nn.Linear) -> None:
    sensitivity = 3e4  # the weights' last digits change the gradient by a few per cent
    nearby = [0.0]

    def reference() -> Vector:
        found = of_the_weights(model, sensitivity)
        nearby.append(float((found[0] - GRADIENT[0]).norm() / GRADIENT[0].norm()))
        return found

    assert disagreement(times(1.03), reference, model) is None
    assert 0.03 / 4 < nearby[-1] < 0.03
    sensitivity = 1e5
    assert disagreement(times(1.2), reference, model) == pytest.approx(0.2, rel=1e-3)
    sensitivity = 3e2
    assert disagreement(times(1.03), reference, model) == pytest.approx(0.03, rel=1e-3)


def test_weights_come_back_where_the_reference_fails(model: nn.Linear) -> None:
    before, calls = model.weight.clone(), iter(range(9))

    def reference() -> Vector:
        if next(calls):
            raise RuntimeError("out of memory")
        return GRADIENT

    with pytest.raises(RuntimeError, match="out of memory"):
        disagreement(times(1.05), reference, model)
    assert torch.equal(model.weight, before)


def test_what_is_not_a_number_disagrees(model: nn.Linear) -> None:
    assert disagreement(times(float("nan")), lambda: GRADIENT, model) is not None
