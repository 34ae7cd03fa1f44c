"""Norms with the values of `torch.nn.functional` and with derivatives of every order and mode."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor


def batch_norm(
    input: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    """Normalise over all dimensions but the channels. Running statistics are read out of training, never written."""
    shape = [1, -1, *[1] * (input.ndim - 2)]
    if training or running_mean is None or running_var is None:
        normal = _standardised(input, [0, *range(2, input.ndim)], eps)
    else:
        normal = (input - running_mean.reshape(shape)) * torch.rsqrt(running_var.reshape(shape) + eps)
    return _affine(normal, weight, bias, shape)


def layer_norm(
    input: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """Normalise over the last dimensions."""
    normal = _standardised(input, list(range(input.ndim - len(normalized_shape), input.ndim)), eps)
    return _affine(normal, weight, bias, list(normalized_shape))


def rms_norm(
    input: Tensor, normalized_shape: Sequence[int], weight: Tensor | None = None, eps: float | None = None
) -> Tensor:
    """Divide by the root mean square over the last dimensions."""
    over = list(range(input.ndim - len(normalized_shape), input.ndim))
    least = torch.finfo(input.dtype).eps if eps is None else eps
    normal = input * torch.rsqrt(input.square().mean(over, keepdim=True) + least)
    return _affine(normal, weight, None, list(normalized_shape))


def group_norm(
    input: Tensor, num_groups: int, weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5
) -> Tensor:
    """Normalise over groups of channels of each example."""
    grouped = input.reshape(input.shape[0], num_groups, -1)
    normal = _standardised(grouped, [2], eps).reshape(input.shape)
    return _affine(normal, weight, bias, [1, -1, *[1] * (input.ndim - 2)])


def instance_norm(
    input: Tensor,
    running_mean: Tensor | None = None,
    running_var: Tensor | None = None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    use_input_stats: bool = True,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    """Normalise over each channel of each example, or by running statistics."""
    if not use_input_stats:
        return batch_norm(input, running_mean, running_var, weight, bias, False, momentum, eps)
    return group_norm(input, input.shape[1], weight, bias, eps)


def _standardised(values: Tensor, over: list[int], eps: float) -> Tensor:
    normal: Tensor = _Standardised.apply(values, over, eps)[0]
    return normal


class _Standardised(torch.autograd.Function):
    """The function x ↦ y = (x − mean) · r, r = 1 / √(variance + eps), with derivatives in closed form.

    Along ẋ, ẏ = r · (ẋ − mean ẋ − y · mean(y ẋ)) and ṙ = −r² · mean(y ẋ). The map from ẋ to ẏ is its own transpose.
    One pass over the values computes both means. Differentiating mean and variance separately would take two passes,
    and twice as many at each further order.
    """

    @staticmethod
    def forward(values: Tensor, over: list[int], eps: float) -> tuple[Tensor, Tensor]:
        variance, mean = torch.var_mean(values, over, correction=0, keepdim=True)
        reciprocal = torch.rsqrt(variance + eps)
        return (values - mean) * reciprocal, reciprocal

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, list[int], float], output: tuple[Tensor, Tensor]) -> None:
        ctx.over = inputs[1]
        ctx.set_materialize_grads(False)  # only derivatives use r, so it seldom has a cotangent
        ctx.save_for_backward(*output)
        ctx.save_for_forward(*output)

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor | None) -> tuple[Tensor | None, None, None]:
        (normal, reciprocal), (cotangent, of_reciprocal) = ctx.saved_tensors, cotangents
        gradient = None
        if cotangent is not None:
            gradient, _ = _change(normal, reciprocal, cotangent, ctx.over)
        if of_reciprocal is not None:
            count = normal.numel() // reciprocal.numel()
            more = (of_reciprocal * reciprocal.square() / -count) * normal
            gradient = more if gradient is None else gradient + more
        return gradient, None, None

    @staticmethod
    def jvp(ctx: Any, *tangents: Tensor) -> tuple[Tensor, Tensor]:
        normal, reciprocal = ctx.saved_tensors
        change, slope = _change(normal, reciprocal, tangents[0], ctx.over)
        return change, -reciprocal.square() * slope


def _change(normal: Tensor, reciprocal: Tensor, direction: Tensor, over: list[int]) -> tuple[Tensor, Tensor]:
    """Return r · (ẋ − mean ẋ − y · mean(y ẋ)), and mean(y ẋ)."""
    mean, slope = (values.mean(over, keepdim=True) for values in (direction, normal * direction))
    return reciprocal * (direction - mean - normal * slope), slope


def _affine(normal: Tensor, weight: Tensor | None, bias: Tensor | None, shape: list[int]) -> Tensor:
    scaled = normal if weight is None else normal * weight.reshape(shape)
    return scaled if bias is None else scaled + bias.reshape(shape)
