"""What the operations accept, said once.

Shapes and dtypes are checked always. Values are checked on the CPU only: reading them from a GPU would
make the host wait for the device at every call.
"""

import difflib
from collections.abc import Iterable

import torch
from torch import Tensor

_ROUNDING = 1e-3
"""How far outside [0, 1] a float image may lie: resizing and blending overshoot by rounding."""


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
    if images.is_floating_point() and images.device.type == "cpu" and images.numel():
        low, high = (bound.item() for bound in torch.aminmax(images.detach()))
        # Negated, so that NaN, for which every comparison is false, is refused too.
        if not (low >= -_ROUNDING and high <= 1 + _ROUNDING):
            raise ValueError(
                f"float images must lie in [0, 1], got values from {low:.4g} to {high:.4g}; augment before "
                "normalising, and divide 0..255 images by 255"
            )


def check_per_image(name: str, values: Tensor, images: Tensor) -> None:
    """Raise unless `values` is a floating-point `[B]` tensor without NaN on the device of `images`."""
    if not isinstance(values, Tensor):
        raise TypeError(f"{name} must be a torch.Tensor with one value per image, got {type(values).__name__}")
    if values.shape != images.shape[:1]:
        raise ValueError(f"{name} must have one value per image, shape [{len(images)}], got shape {list(values.shape)}")
    if not values.is_floating_point():
        raise TypeError(f"{name} must be floating point, got {values.dtype}")
    if values.device != images.device:
        raise ValueError(f"{name} is on {values.device} but the images are on {images.device}")
    if values.device.type == "cpu" and not torch.isfinite(values).all():
        raise ValueError(f"{name} must be finite, got {values.detach().tolist()[:8]}")


def nearest(name: str, known: Iterable[str]) -> str:
    """`name` with the nearest known names behind it, for the end of an error message."""
    known = list(known)
    by_lower = {candidate.lower(): candidate for candidate in known}
    close = difflib.get_close_matches(name.lower(), by_lower, n=1)
    hint = f"did you mean {by_lower[close[0]]!r}? " if close else ""
    return f"{name!r}; {hint}known are {', '.join(known)}"
