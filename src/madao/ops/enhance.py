"""Operations that blend an image with a degenerate version of itself: color, contrast, brightness, sharpness.

    result = degenerate + factor · (image − degenerate), clipped to the range of an image

A factor of 1 is the identity, 0 gives the degenerate image, and 2 goes the same distance in the other direction. uint8
images follow the arithmetic of PIL's `ImageEnhance`: whole-number luma, float32 blending, truncation. Float images are
not rounded. `factor` always has shape `[B]`.
"""

import torch
from torch import Tensor

from madao.ops.tone import truncate

_LUMA = (0.299, 0.587, 0.114)
_LUMA_65536 = (19595, 38470, 7471)
"""The luma in 1/65536. Every sum stays below 2²⁴, so float32 computes PIL's integer luma exactly."""


def color(images: Tensor, factor: Tensor) -> Tensor:
    """Blend with the grey image. One-channel images do not change."""
    return images.clone() if images.shape[1] == 1 else _blend(images, grey(images), factor)


def contrast(images: Tensor, factor: Tensor) -> Tensor:
    """Blend with the mean of the grey image, one constant per image."""
    if images.dtype == torch.uint8:
        mean = grey(images).mean((1, 2, 3), keepdim=True, dtype=torch.float64).add_(0.5).floor_().float()
    else:
        mean = grey(images).mean((1, 2, 3), keepdim=True)
    return _blend(images, mean, factor)


def brightness(images: Tensor, factor: Tensor) -> Tensor:
    """Blend with black."""
    black = torch.zeros((), device=images.device, dtype=_working_dtype(images))
    return _blend(images, black, factor)


def sharpness(images: Tensor, factor: Tensor) -> Tensor:
    """Blend with the image smoothed by [[1, 1, 1], [1, 5, 1], [1, 1, 1]] / 13; the outermost pixels do not change."""
    result = images.clone()
    if min(images.shape[2:]) < 3:
        return result
    values = images.to(_working_dtype(images))
    rows = values[:, :, :-2] + values[:, :, 1:-1]
    rows += values[:, :, 2:]
    smooth = rows[..., :-2] + rows[..., 1:-1]
    smooth += rows[..., 2:]
    inside = values[:, :, 1:-1, 1:-1]
    smooth = smooth.add_(inside, alpha=4).mul_(1 / 13)
    if images.dtype == torch.uint8:
        smooth = smooth.add_(0.5).floor_()
    result[:, :, 1:-1, 1:-1] = _blend(images[:, :, 1:-1, 1:-1], smooth, factor)
    return result


def _blend(images: Tensor, degenerate: Tensor, factor: Tensor) -> Tensor:
    factor = factor.reshape(-1, 1, 1, 1)
    if images.dtype == torch.uint8:
        # Product and sum are rounded separately: a fused operation would sometimes differ from PIL by a level.
        blended = images.float().sub_(degenerate).mul_(factor.float()).add_(degenerate)
        return truncate(blended.clamp_(0, 255))
    # In this order of arguments, lerp returns the image bit for bit at factor 1.
    return torch.lerp(images, degenerate.expand_as(images), 1 - factor.to(images.dtype)).clamp(0, 1)


def grey(images: Tensor) -> Tensor:
    """Return the luma of ITU-R 601, `[B, 1, H, W]`; for uint8 rounded to a whole level, as float32."""
    values = images.to(_working_dtype(images))
    if images.shape[1] == 1:
        return values
    red, green, blue = _LUMA_65536 if images.dtype == torch.uint8 else _LUMA
    luma = (values[:, :1] * red).add_(values[:, 1:2], alpha=green).add_(values[:, 2:], alpha=blue)
    return luma.add_(32768).mul_(1 / 65536).floor_() if images.dtype == torch.uint8 else luma


def _working_dtype(images: Tensor) -> torch.dtype:
    return torch.float32 if images.dtype == torch.uint8 else images.dtype
