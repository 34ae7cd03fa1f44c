"""Checks that two ways to compute a gradient agree, up to rounding."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from madao.device.precision import full_precision
from madao.hypergrad import Traced, pytree
from madao.hypergrad.autodiff.functional_model import unwrap
from madao.hypergrad.autodiff.products import SecondOrder
from madao.hypergrad.autodiff.traced import UntraceableError
from madao.hypergrad.pytree import Vector
from madao.outer.outer_gradient import OuterGradient
from madao.outer.outer_step import OuterRequest

_IMAGES = 16
"""Images on which traced code is compared with the reference."""

_TOLERANCE = 0.02
"""The relative difference up to which two gradients agree."""

_MOST = 0.1
"""The relative difference above which they never agree. In between, rounding may explain the difference."""

_FACTOR = 4.0
"""Rounding explains this many times the change that the last digits of the weights cause."""


def check_traced(reference: OuterGradient, request: OuterRequest, tensors: tuple[Tensor, ...]) -> None:
    """Raise unless traced code has the gradient of the reference, on a few images of which some are only scored.

    Args:
        reference: The hypergradient without tracing.
        request: The request of the outer step.
        tensors: Its tensors.

    Raises:
        UntraceableError: The gradients differ.
    """
    policy, model = reference.builder.policy, unwrap(reference.builder.model)
    few = tuple(tensor[:_IMAGES].clone() for tensor in tensors)
    small, state = reference.for_comparison(len(few[0])), policy.get_extra_state()

    def gradient(hvp: SecondOrder | None) -> Vector:
        policy.set_extra_state(state)
        return small.with_hvp(hvp)(request, few).grads

    try:
        with full_precision():
            difference = disagreement(gradient(Traced()), lambda: gradient(reference.hvp), model)
    finally:
        policy.set_extra_state(state)
    if difference is not None:
        raise UntraceableError(
            f"traced, the model has another gradient (off by {difference:.1%}): it stops gradients, or has a backward "
            "pass of its own"
        )


def disagreement(found: Vector, reference: Callable[[], Vector], model: nn.Module) -> float | None:
    """Return the relative difference between a gradient and the reference, or None if rounding explains it.

    Second derivatives of a deep network with BatchNorm in training mode are sensitive to rounding: an untrained
    ResNet-50 of torchvision computes them to two or three per cent in float32.

    Args:
        found: The gradient.
        reference: Computes the correct gradient at the current weights.
        model: The model with these weights. They are changed for a moment if the difference is large.
    """
    expected = reference()
    difference = _relative(found, expected)
    if difference <= _TOLERANCE:
        return None
    if difference <= _MOST and difference <= _FACTOR * _relative(_nearby(reference, model), expected):
        return None
    return difference


def _nearby(reference: Callable[[], Vector], model: nn.Module) -> Vector:
    """Return the reference at weights half of which, by coins, are larger by their last digit."""
    weights = [parameter for parameter in model.parameters() if parameter.is_floating_point()]
    kept = [weight.detach().clone() for weight in weights]
    generator = torch.Generator().manual_seed(0)
    try:
        with torch.no_grad():
            for weight in weights:
                coins = torch.randint(0, 2, weight.shape, generator=generator).to(weight)
                weight.mul_(1 + coins * torch.finfo(weight.dtype).eps)
        return reference()
    finally:
        with torch.no_grad():
            for weight, before in zip(weights, kept, strict=True):
                weight.copy_(before)


def _relative(first: Vector, second: Vector) -> float:
    return float(pytree.norm(pytree.add(first, second, -1.0)) / pytree.norm(second).clamp(min=1e-30))
