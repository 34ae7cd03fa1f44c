"""From floating point to the 256 levels of uint8."""

import torch
from torch import Tensor


def truncate(values: Tensor) -> Tensor:
    """Values in [0, 256) without their fraction, as uint8. By way of int16, which is three times as fast on CPUs."""
    return values.to(torch.int16).to(torch.uint8)


def nearest_levels(images: Tensor) -> Tensor:
    """The image's levels 0..255 as uint8: itself, or 255 · image rounded."""
    if images.dtype == torch.uint8:
        return images
    return truncate((images.detach() * 255).round_().clamp_(0, 255))
