"""Whether two ways to the same gradient agree, as far as rounding lets them."""

from collections.abc import Callable

import torch
from torch import nn

from madao.hypergrad import pytree
from madao.hypergrad.autodiff.traced import UntraceableError
from madao.hypergrad.pytree import Vector

_TOLERANCE = 0.02
_MOST = 0.1
_FACTOR = 4.0
"""How far the two may be apart, relative: so much at once; at most so much where rounding explains it, that is, where
they are no further apart than so many times what a change of the weights' last digits makes."""


def check_traced(found: Vector, reference: Callable[[], Vector], model: nn.Module) -> None:
    """Raise unless traced code has the reference's gradient; arguments as of `disagreement`."""
    off = disagreement(found, reference, model)
    if off is not None:
        raise UntraceableError(
            f"traced, the model has another gradient (off by {off:.1%}): it stops gradients, or has a backward pass of "
            "its own"
        )


def disagreement(found: Vector, reference: Callable[[], Vector], model: nn.Module) -> float | None:
    """How far a gradient is off the reference, relative, or None where it is no further than rounding takes it.

    Second derivatives of a deep network with BatchNorm in training mode are that sensitive: an untrained ResNet-50 of
    torchvision's, in float32, has them to two or three per cent.

    Args:
        found: The gradient.
        reference: What it should be, at the weights as they are.
        model: Whose weights these are; they are changed for a moment where that is needed.
    """
    expected = reference()
    difference = _relative(found, expected)
    if difference <= _TOLERANCE:
        return None
    if difference <= _MOST and difference <= _FACTOR * _relative(_nearby(reference, model), expected):
        return None
    return difference


def _nearby(reference: Callable[[], Vector], model: nn.Module) -> Vector:
    """The reference where every second weight, more or less, is larger by the least there is."""
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
