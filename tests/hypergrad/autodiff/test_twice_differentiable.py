"""The functions that replace those of torch: the same values and derivatives, in float64."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd import gradcheck, gradgradcheck
from torch.nn.utils import parametrizations

from madao.hypergrad.autodiff.torch_compat import Replaced
from madao.hypergrad.autodiff.twice_differentiable import TWICE_DIFFERENTIABLE, attention, hardsigmoid, weight_norm


def values(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def away_from_kinks() -> Tensor:
    """Values on all three pieces of hardsigmoid, none within 0.01 of its kinks at ±3."""
    found = 3 * values(40)
    return found[(found.abs() - 3).abs() > 0.01]


def assert_same_gradients(
    found: Callable[..., Tensor], expected: Callable[..., Tensor], arguments: tuple[Tensor, ...]
) -> None:
    leaves = [argument.clone().requires_grad_() for argument in arguments]
    results = [function(*leaves) for function in (found, expected)]
    torch.testing.assert_close(results[0], results[1])
    weights = values(*results[0].shape, seed=1)
    gradients = [torch.autograd.grad(result, leaves, weights) for result in results]
    torch.testing.assert_close(gradients[0], gradients[1])


def assert_derivatives_are_right(function: Callable[..., Tensor], arguments: tuple[Tensor, ...]) -> None:
    """Compare first and second derivatives, in reverse mode and in forward over reverse mode, with differences."""
    leaves = tuple(argument.clone().requires_grad_() for argument in arguments)
    assert gradcheck(function, leaves, check_forward_ad=True)
    assert gradgradcheck(function, leaves, check_fwd_over_rev=True)


def test_attention_equals_torchs_own() -> None:
    generator = torch.Generator().manual_seed(0)
    query, key, value = (torch.randn(2, 4, 5, 8, generator=generator) for _ in range(3))
    mask = torch.rand(5, 5, generator=generator) > 0.4
    mask[2] = False  # a row that may attend to nothing
    for settings in ({}, {"attn_mask": mask}, {"attn_mask": mask.float()}, {"is_causal": True}, {"scale": 0.3}):
        expected = F.scaled_dot_product_attention(query, key, value, **settings)
        torch.testing.assert_close(attention(query, key, value, **settings), expected)
    grouped = F.scaled_dot_product_attention(query, key[:, :2], value[:, :2], enable_gqa=True)
    torch.testing.assert_close(attention(query, key[:, :2], value[:, :2], enable_gqa=True), grouped)


def test_hardsigmoid_equals_torchs_own() -> None:
    assert_same_gradients(hardsigmoid, F.hardsigmoid, (away_from_kinks(),))
    single = torch.linspace(-4, 4, 1001)
    assert torch.equal(hardsigmoid(single), F.hardsigmoid(single))


def test_hardsigmoid_has_second_derivatives() -> None:
    assert_derivatives_are_right(lambda x: hardsigmoid(x).square(), (away_from_kinks(),))


@pytest.mark.parametrize(("dim", "norms"), [(0, (3, 1, 1)), (1, (1, 4, 1)), (-1, ())])
def test_weight_norm_equals_torchs_own(dim: int, norms: tuple[int, ...]) -> None:
    arguments = values(3, 4, 2), values(*norms, seed=2).abs()
    assert_same_gradients(lambda v, g: weight_norm(v, g, dim), lambda v, g: torch._weight_norm(v, g, dim), arguments)
    assert_derivatives_are_right(lambda v, g: weight_norm(v, g, dim), arguments)


def test_spectral_norm_updates_its_buffers_as_torch_does() -> None:
    layers = []
    for _ in range(2):
        torch.manual_seed(0)
        layers.append(parametrizations.spectral_norm(nn.Linear(5, 4)).double().train())
    expected = layers[0](values(2, 5))
    with Replaced(TWICE_DIFFERENTIABLE):
        found = layers[1](values(2, 5))
    assert torch.equal(found, expected)
    for name, buffer in layers[0].named_buffers():
        assert torch.equal(buffer, dict(layers[1].named_buffers())[name]), name


@pytest.mark.parametrize("activation", [nn.Hardswish(), nn.ReLU6(), nn.Hardtanh(), nn.SiLU(), nn.Mish(), nn.ELU()])
def test_torchs_own_activations_have_second_derivatives(activation: Any) -> None:
    assert_derivatives_are_right(lambda x: activation(x).square(), (away_from_kinks(),))
