"""Checks of the arguments of operations and policies.

Shapes and dtypes are always checked, values only on the CPU: reading them from a GPU would make the host wait at every
call.
"""

import numbers
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

_ROUNDING = 1e-3
"""Tolerance of float images outside [0, 1]: resizing and blending overshoot by rounding."""


def check_images(images: Tensor) -> None:
    """Raise unless `images` is a `[B, C, H, W]` batch, C of 1 or 3, uint8 or float in [0, 1]."""
    if not isinstance(images, Tensor):
        raise TypeError(
            f"images must be a torch.Tensor, got {type(images).__name__}; for PIL images or arrays, stack "
            "them to a uint8 tensor [B, C, H, W] first"
        )
    if images.ndim != 4:
        raise ValueError(
            f"images must have 4 dimensions [B, C, H, W], got shape {list(images.shape)}"
            + ("; add a batch dimension with images[None]" if images.ndim == 3 else "")
        )
    if images.dtype != torch.uint8 and not images.is_floating_point():
        raise TypeError(
            f"images must be uint8 in 0..255 or floating point in [0, 1], got {images.dtype}; "
            "convert with images.to(torch.uint8)"
        )
    if images.shape[1] not in (1, 3):
        raise ValueError(
            f"images must have 1 or 3 channels, got {images.shape[1]} (shape {list(images.shape)}); "
            "the layout is [B, C, H, W], and an alpha channel is dropped with images[:, :3]"
        )
    if 0 in images.shape[2:]:
        raise ValueError(f"images must have at least one pixel, got shape {list(images.shape)}")
    if images.device.type == "cpu":
        check_range(images, "float images", "augment before normalising, and divide 0..255 images by 255")


def check_range(images: Tensor, name: str, remedy: str) -> None:
    """Raise if float images have values outside [0, 1]. The host waits for the device."""
    if not images.is_floating_point() or not images.numel():
        return
    low, high = (bound.item() for bound in torch.aminmax(images.detach()))
    # Negated to refuse NaN too, for which every comparison is false.
    if not (low >= -_ROUNDING and high <= 1 + _ROUNDING):
        raise ValueError(f"{name} must lie in [0, 1], got values from {low:.4g} to {high:.4g}; {remedy}")


def check_strengths(magnitude: Tensor, sign: Tensor, images: Tensor) -> None:
    """Raise unless there is a magnitude in [0, 1] and a sign of ±1 for each image, in the last dimension."""
    for name, values in (("magnitude", magnitude), ("sign", sign)):
        if not isinstance(values, Tensor):
            raise TypeError(f"{name} must be a torch.Tensor with one value per image, got {type(values).__name__}")
        if values.shape[-1:] != images.shape[:1]:
            shapes = f"shape [{len(images)}], got shape {list(values.shape)}"
            raise ValueError(f"{name} must have one value per image, {shapes}")
        if not values.is_floating_point():
            raise TypeError(f"{name} must be floating point, got {values.dtype}")
        if values.device != images.device:
            raise ValueError(f"{name} is on {values.device} but the images are on {images.device}")
    if images.device.type != "cpu":
        return
    # Negated to refuse NaN too.
    outside = ~((magnitude >= 0) & (magnitude <= 1))
    if outside.any():
        raise ValueError(f"magnitude must lie in [0, 1], got {magnitude.detach()[outside].tolist()[:4]}")
    if (sign.abs() != 1).any():
        raise ValueError(f"sign must be +1 or -1, got {sign.detach()[sign.abs() != 1].tolist()[:4]}")


def check_fill(fill: Any) -> float | tuple[float, ...]:
    """Return the fill as a float or a tuple of one or three; raise unless all numbers lie in [0, 1]."""
    single = isinstance(fill, numbers.Real)
    values = (fill,) if single else tuple(fill) if isinstance(fill, Sequence) else ()
    within = all(isinstance(value, numbers.Real) and 0 <= float(value) <= 1 for value in values)
    if not within or len(values) not in (1, 3):
        raise ValueError(
            f"fill must be a number from 0 to 1, or one for each of 1 or 3 channels, got {fill!r}; for a level of "
            "0..255 divide by 255"
        )
    return float(values[0]) if single else tuple(float(value) for value in values)


def check_fill_fits(fill: float | Sequence[float], images: Tensor) -> None:
    """Raise if a fill of several numbers has another number of channels than the images."""
    if isinstance(fill, Sequence) and len(fill) != images.shape[1]:
        raise ValueError(f"fill must be one number or one per channel ({images.shape[1]}), got {fill!r}")
