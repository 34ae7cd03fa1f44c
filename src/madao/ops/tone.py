"""Operations on pixel values: invert, solarize, posterize, autocontrast, equalize.

On uint8 they equal PIL's `ImageOps` to the last bit. On float they are the same functions of 255 · image. If a function
is a staircase in the *image*, its derivative in the image is set to one (straight through), so that operations applied
before it still receive a gradient.
"""

from typing import Any

import torch
from torch import Tensor


def truncate(values: Tensor) -> Tensor:
    """Convert values in [0, 256) to uint8 without their fraction. On CPUs the way over int16 is three times as fast."""
    return values.to(torch.int16).to(torch.uint8)


def nearest_levels(images: Tensor) -> Tensor:
    """Return the images as levels 0..255 in uint8; float images are rounded."""
    if images.dtype == torch.uint8:
        return images
    return truncate((images.detach() * 255).round_().clamp_(0, 255))


def invert(images: Tensor) -> Tensor:
    """Return 1 − image, or 255 − image."""
    return 255 - images if images.dtype == torch.uint8 else 1 - images


def solarize(images: Tensor, threshold: Tensor) -> Tensor:
    """Invert the pixels at or above a level. `threshold`: `[B]`, in levels, 256 for none and 0 for all."""
    threshold = threshold.reshape(-1, 1, 1, 1)
    if images.dtype == torch.uint8:
        # level ≥ t if and only if level ≥ ceil(t), and no level is above 255. 255 − v is v xor 255.
        whole = threshold.ceil().clamp(0, 255).to(torch.uint8)
        flip = (threshold <= 255).to(torch.uint8) * 255
        return (images >= whole).view(torch.uint8).mul_(flip).bitwise_xor_(images)
    return torch.where(images * 255 >= threshold, 1 - images, images)


def posterize(images: Tensor, bits: Tensor) -> Tensor:
    """Keep the highest `bits` of the 8 bits of each level: `[B]`, rounded to a whole number in 0..8.

    Derivative in the image: 1 (straight through).
    """
    # Half rounds up. Rounding half to even would merge four of the steps between 8 and 4 bits into two.
    kept = (bits.detach() + 0.5).floor().clamp(0, 8).reshape(-1, 1, 1, 1)
    mask = (256 - torch.exp2(8 - kept)).to(torch.uint8)
    levels = nearest_levels(images) & mask
    # Eight bits keep a float image unchanged, also between two levels.
    return (
        levels
        if images.dtype == torch.uint8
        else _through(torch.where(kept == 8, images.detach(), levels.to(images.dtype) / 255), images)
    )


def autocontrast(images: Tensor) -> Tensor:
    """Stretch each channel of each image so that its darkest pixel is 0 and its brightest the maximum.

    A channel that spans less than half a level counts as constant and does not change.
    """
    low, high = images.amin((2, 3), keepdim=True), images.amax((2, 3), keepdim=True)
    if images.dtype == torch.uint8:
        # float64 and truncation, as in PIL. The quotient needs two tensors: torch computes a number over a tensor as a
        # product with the reciprocal, which rounds twice and turns 170 into 169.
        span = high.double() - low.double()
        scale = torch.full_like(span, 255) / span
        table = torch.arange(256, device=images.device) * scale - low * scale
        return _look_up(images, torch.where(high > low, table.nan_to_num(), torch.arange(256, device=images.device)))
    flat = high - low < 0.5 / 255
    return torch.where(flat, images, (images - low) / torch.where(flat, 1, high - low))


def equalize(images: Tensor) -> Tensor:
    """Flatten the histogram h of each channel of each image: level i becomes ⌊(s / 2 + Σ_{j<i} h_j) / s⌋.

    s = ⌊(pixels − pixels of the brightest level) / 255⌋; if s = 0 the channel does not change. Derivative in the image:
    1 (straight through).
    """
    levels = nearest_levels(images)
    planes = levels.shape[0] * levels.shape[1]
    first = 256 * torch.arange(planes, dtype=torch.int32, device=images.device)
    index = levels.flatten(0, 1).flatten(1) + first[:, None]
    histogram = torch.bincount(index.flatten(), minlength=256 * planes).reshape(*levels.shape[:2], 1, 256)
    bins = torch.arange(256, device=images.device)
    brightest = torch.where(histogram > 0, bins, 0).amax(-1, keepdim=True)
    step = (histogram.sum(-1, keepdim=True) - histogram.gather(-1, brightest)) // 255
    table = (step // 2 + histogram.cumsum(-1) - histogram) // step.clamp(min=1)
    equalized = _look_up(levels, torch.where(step > 0, table, bins))
    if images.dtype == torch.uint8:
        return equalized
    return _through(torch.where(step > 0, equalized.to(images.dtype) / 255, images.detach()), images)


def _look_up(levels: Tensor, table: Tensor) -> Tensor:
    """Replace level v of channel (b, c) by `table[b, c, 0, v]`, truncated and clipped to 0..255."""
    table = table.clamp(0, 255).to(torch.uint8).flatten(2)
    return table.gather(2, levels.flatten(2).long()).reshape(levels.shape)


class _Through(torch.autograd.Function):
    """The value of the first argument with the derivative of the second."""

    generate_vmap_rule = True

    @staticmethod
    def forward(value: Tensor, images: Tensor) -> Tensor:
        return value.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[None, Tensor]:
        return None, gradients[0]

    @staticmethod
    def jvp(ctx: Any, *tangents: Tensor) -> Tensor:
        return tangents[1].clone()


def _through(value: Tensor, images: Tensor) -> Tensor:
    through: Tensor = _Through.apply(value, images)
    return through
