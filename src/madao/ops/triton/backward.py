# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator, misc"
# ruff: noqa: N803, N806, SIM102 -- kernel constants are in capitals, and branches on them vanish at compile time
"""The backward pass of `forward.fused` in Triton, with static shapes and without waits of the host.

For result_b = O_b(image_b, μ_b) and a cotangent g of the result it computes the vector-Jacobian products Σ g_b ·
∂O_b/∂μ and gᵀ_b · ∂O_b/∂image, with the derivatives that autograd finds in `dispatch.grouped`. The values of the
forward pass are computed again, so that only the images and the draw stay in memory.

The first of two launches sums over whole images, one program per image and in a fixed order: the gradient of the
magnitude, and the sums that the second launch needs. The second writes the gradient of the images if it is needed.
Geometric operations spread a pixel over its four neighbours with atomic sums, whose order varies; all other sums are
reproducible.
"""

from collections.abc import Sequence
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

from madao.ops.geometric import Fill
from madao.ops.registry import OPERATIONS, SECANT_HALF_WIDTH, Operation
from madao.ops.triton.forward import (
    AUTO_CONTRAST,
    BLUE,
    BRIGHTNESS,
    COLOR,
    CONTRAST,
    GREEN,
    INVERT,
    OPTIONS,
    POSTERIZE,
    RADIANS,
    RED,
    ROTATE,
    SHARPNESS,
    SHEAR_X,
    SHEAR_Y,
    SMALL,
    SOLARIZE,
    TRANSLATE_X,
    TRANSLATE_Y,
    centre_of,
    corner,
    draw_arguments,
    extremes,
    fill_arguments,
    fused,
    grey_at,
    grey_mean,
    neighbours,
    operation_of,
    posterized,
    read_place,
    smoothed,
    solarized,
    span_of,
    supported,
    unclipped,
)

HALF_WINDOW = tl.constexpr(SECANT_HALF_WIDTH)
EDGE_PASSES = tl.constexpr(bool(torch.func.grad(lambda edge: edge.clamp(0, 1))(torch.zeros((), device="cpu")) != 0))
"""Whether a gradient passes a clip at exactly 0 and 1. This depends on torch's version; follow `grouped`."""

_LARGE = 2048
"""Most pixels that a program sums in one step."""


def differentiable(images: Tensor, operations: Sequence[Operation]) -> bool:
    """Return whether the kernels have the derivatives of `dispatch.grouped` for these images and operations."""
    known = images.dtype == torch.float32 and supported(images, operations)
    return known and all(operation.derivative == OPERATIONS[operation.name].derivative for operation in operations)


def fused_differentiable(
    images: Tensor,
    operations: Sequence[Operation],
    choice: Tensor,
    magnitude: Tensor,
    sign: Tensor,
    applied: Tensor | None = None,
    fill: Fill = 0.0,
) -> Tensor:
    """Do what `fused` does for `differentiable` images, with first derivatives in reverse mode only."""
    result: Tensor = _Fused.apply(images, magnitude, choice, sign, applied, tuple(operations), fill)
    return result


class _Fused(torch.autograd.Function):
    @staticmethod
    def forward(
        images: Tensor,
        magnitude: Tensor,
        choice: Tensor,
        sign: Tensor,
        applied: Tensor | None,
        operations: tuple[Operation, ...],
        fill: Fill,
    ) -> Tensor:
        return fused(images, operations, choice, magnitude, sign, applied, fill)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        *tensors, ctx.operations, ctx.fill = inputs
        ctx.save_for_backward(*tensors)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, cotangent: Tensor) -> tuple[Tensor | None, ...]:
        images, magnitude, choice, sign, applied = ctx.saved_tensors
        draw = draw_arguments(ctx.operations, choice, magnitude, sign, applied)
        to_images, to_magnitude = _gradients(images, cotangent, draw, ctx.fill, ctx.needs_input_grad[0])
        return to_images, to_magnitude, None, None, None, None, None


def _gradients(
    images: Tensor, cotangent: Tensor, draw: tuple[Any, ...], fill: Fill, of_images: bool
) -> tuple[Tensor | None, Tensor]:
    """Return the gradients of the images `[B, C, H, W]`, None unless `of_images`, and of the magnitude `[B]`."""
    images, cotangent = images.contiguous(), cotangent.contiguous()
    count, channels, height, width = images.shape
    pixels = height * width
    to_magnitude = torch.zeros(count, dtype=torch.float32, device=images.device)
    # Geometric operations add to this.
    to_images = torch.zeros_like(images) if of_images else None
    if not images.numel():
        return to_images, to_magnitude
    # From the first launch to the second: sums over images, and the cotangent of Sharpness without clipped pixels.
    sums = torch.empty(count, channels, 4, dtype=torch.float32, device=images.device)
    passed = torch.empty_like(images) if of_images else images
    shape = {"HEIGHT": height, "WIDTH": width, "CHANNELS": channels}
    colour = fill_arguments(fill)
    block, warps = (SMALL, 8) if pixels <= SMALL else (_LARGE, 16)
    with torch.cuda.device_of(images):  # Triton launches on the current GPU, whatever the tensors say
        _sum[(count,)](
            images, cotangent, to_magnitude, sums, passed, *draw, *colour,
            **shape, OF_IMAGES=of_images, BLOCK=block, num_warps=warps, **OPTIONS,
        )  # fmt: skip
        if to_images is not None:
            grid = (count, triton.cdiv(pixels, SMALL))
            _spread[grid](
                images, cotangent, to_images, sums, passed, *draw, **shape, BLOCK=SMALL, num_warps=8, **OPTIONS
            )
    return to_images, to_magnitude


@triton.jit
def _read_place_slope(code, value, row, column, HEIGHT: tl.constexpr, WIDTH: tl.constexpr):
    """Return the derivative of `read_place` in the operation's value."""
    ASPECT: tl.constexpr = WIDTH / HEIGHT
    INVERSE: tl.constexpr = HEIGHT / WIDTH
    x, y = centre_of(row, column, HEIGHT, WIDTH)
    turned, moved = tl.sin(value * RADIANS) * RADIANS, tl.cos(value * RADIANS) * RADIANS
    across, down = tl.zeros_like(x), tl.zeros_like(y)
    if code == SHEAR_X:
        across = (y + 1.0) * INVERSE
    if code == SHEAR_Y:
        down = (x + 1.0) * ASPECT
    if code == TRANSLATE_X:
        across = tl.zeros_like(x) + 2.0
    if code == TRANSLATE_Y:
        down = tl.zeros_like(y) + 2.0
    if code == ROTATE:
        across = -turned * x - moved * INVERSE * y
        down = moved * ASPECT * x - turned * y
    return across * (0.5 * WIDTH), down * (0.5 * HEIGHT)


@triton.jit
def _is_inner(place, HEIGHT: tl.constexpr, WIDTH: tl.constexpr):
    """Return whether a place is not on the border; Sharpness changes only these."""
    row, column = place // WIDTH, place % WIDTH
    return (row > 0) & (row < HEIGHT - 1) & (column > 0) & (column < WIDTH - 1)


@triton.jit
def _passed(
    code, value, mean, source, cotangent, channel, place, inside,
    HEIGHT: tl.constexpr, WIDTH: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    """Return the cotangent of a blend, 0 where it was clipped, and the difference image − degenerate image."""
    PIXELS: tl.constexpr = HEIGHT * WIDTH
    plane = source + channel * PIXELS
    values = tl.load(plane + place, inside, 0)
    degenerate = tl.zeros_like(values)  # Brightness
    if code == COLOR:
        degenerate = grey_at(source, place, inside, PIXELS, CHANNELS, False)
    if code == CONTRAST:
        degenerate += mean
    if code == SHARPNESS:
        inner = inside & _is_inner(place, HEIGHT, WIDTH)
        degenerate = tl.where(inner, smoothed(plane, place, inner, values, WIDTH), values)
    blended = unclipped(values, degenerate, value)
    given = tl.load(cotangent + channel * PIXELS + place, inside, 0)
    within = (blended > 0.0) & (blended < 1.0)
    if EDGE_PASSES:
        within = (blended >= 0.0) & (blended <= 1.0)
    return tl.where(within, given, 0.0), values - degenerate


@triton.jit
def _is_blend(code, CHANNELS: tl.constexpr):
    """Return whether an operation blends; Color does not change grey images."""
    return ((code == COLOR) & (CHANNELS == 3)) | (code == CONTRAST) | (code == BRIGHTNESS) | (code == SHARPNESS)


@triton.jit
def _sum(
    images, cotangent, to_magnitude, sums, passed,
    choice, applied, magnitude, sign, codes, numbers, count, fill_0, fill_1, fill_2,
    HEIGHT: tl.constexpr, WIDTH: tl.constexpr, CHANNELS: tl.constexpr, OF_IMAGES: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Store the gradient of an image's magnitude, and the sums over the image that its own gradient needs.

    For AutoContrast, `sums` `[B, C, 4]` holds the lowest and the highest value, and the gradient that each pixel with
    this value receives. For Contrast it holds the mean of the grey image, and the gradient of each of its pixels.
    """
    image = tl.program_id(0).to(tl.int64)
    code, neutral, reach = operation_of(image, choice, applied, sign, codes, numbers, count)
    strength = tl.load(magnitude + image)
    value = neutral + strength * reach
    PIXELS: tl.constexpr = HEIGHT * WIDTH
    first = image * CHANNELS * PIXELS
    source, given = images + first, cotangent + first
    notes = sums + image * CHANNELS * 4
    total = tl.zeros((BLOCK,), tl.float32)
    if (code >= SHEAR_X) & (code <= ROTATE):
        for start in range(0, PIXELS, BLOCK):
            place = start + tl.arange(0, BLOCK)
            inside = place < PIXELS
            row, column = place // WIDTH, place % WIDTH
            across, down = read_place(code, value, row, column, HEIGHT, WIDTH)
            across_slope, down_slope = _read_place_slope(code, value, row, column, HEIGHT, WIDTH)
            first_column, first_row, left, right, top, bottom = neighbours(across, down)
            for channel in tl.static_range(CHANNELS):
                shift = -(fill_0 if channel == 0 else (fill_1 if channel == 1 else fill_2))
                plane = source + channel * PIXELS
                top_left = corner(plane, first_column, first_row, shift, HEIGHT, WIDTH)
                top_right = corner(plane, first_column + 1, first_row, shift, HEIGHT, WIDTH)
                bottom_left = corner(plane, first_column, first_row + 1, shift, HEIGHT, WIDTH)
                bottom_right = corner(plane, first_column + 1, first_row + 1, shift, HEIGHT, WIDTH)
                slope = across_slope * ((top_right - top_left) * top + (bottom_right - bottom_left) * bottom)
                slope += down_slope * ((bottom_left - top_left) * left + (bottom_right - top_right) * right)
                total += tl.load(given + channel * PIXELS + place, inside, 0) * slope
        tl.store(to_magnitude + image, tl.sum(total, 0) * reach)
    elif (code == SOLARIZE) | (code == POSTERIZE):
        weaker, stronger = tl.maximum(strength - HALF_WINDOW, 0.0), tl.minimum(strength + HALF_WINDOW, 1.0)
        low, high = neutral + weaker * reach, neutral + stronger * reach
        for start in range(0, CHANNELS * PIXELS, BLOCK):
            place = start + tl.arange(0, BLOCK)
            inside = place < CHANNELS * PIXELS
            values = tl.load(source + place, inside, 0)
            if code == SOLARIZE:
                rise = solarized(values, high, False) - solarized(values, low, False)
            else:
                rise = posterized(values, high, False) - posterized(values, low, False)
            total += tl.load(given + place, inside, 0) * rise
        tl.store(to_magnitude + image, tl.sum(total, 0) / (stronger - weaker))
    elif _is_blend(code, CHANNELS):
        mean = 0.0
        if code == CONTRAST:
            mean = grey_mean(source, PIXELS, CHANNELS, False, BLOCK)
        everything = tl.zeros((BLOCK,), tl.float32)
        for start in range(0, PIXELS, BLOCK):
            place = start + tl.arange(0, BLOCK)
            inside = place < PIXELS
            for channel in tl.static_range(CHANNELS):
                part, difference = _passed(
                    code, value, mean, source, given, channel, place, inside, HEIGHT, WIDTH, CHANNELS
                )
                total += part * difference
                everything += part
                if OF_IMAGES:
                    if code == SHARPNESS:
                        tl.store(passed + first + channel * PIXELS + place, part, inside)
        tl.store(to_magnitude + image, tl.sum(total, 0) * reach)
        if OF_IMAGES:
            tl.store(notes, mean)
            tl.store(notes + 1, tl.sum(everything, 0) * (1.0 - value) / PIXELS)
    elif code == AUTO_CONTRAST:
        if OF_IMAGES:
            for channel in tl.static_range(CHANNELS):
                plane = source + channel * PIXELS
                lowest, highest = extremes(plane, PIXELS, BLOCK)
                span, flat = span_of(lowest, highest)
                # t = (v − low) / (high − low) has the derivative (t − 1) / span in low, and −t / span in high.
                to_low, to_high = tl.zeros((BLOCK,), tl.float32), tl.zeros((BLOCK,), tl.float32)
                at_low, at_high = tl.zeros((BLOCK,), tl.float32), tl.zeros((BLOCK,), tl.float32)
                for start in range(0, PIXELS, BLOCK):
                    place = start + tl.arange(0, BLOCK)
                    inside = place < PIXELS
                    values = tl.load(plane + place, inside, 0)
                    part = tl.load(given + channel * PIXELS + place, inside, 0) / span
                    stretched = (values - lowest) / span
                    to_low += part * (stretched - 1.0)
                    to_high -= part * stretched
                    at_low += tl.where(inside & (values == lowest), 1.0, 0.0)
                    at_high += tl.where(inside & (values == highest), 1.0, 0.0)
                # Pixels that share an extreme share its gradient, as in `torch.amin`. A constant channel has none.
                low_share = tl.where(flat, 0.0, tl.sum(to_low, 0) / tl.sum(at_low, 0))
                high_share = tl.where(flat, 0.0, tl.sum(to_high, 0) / tl.sum(at_high, 0))
                tl.store(notes + 4 * channel, lowest)
                tl.store(notes + 4 * channel + 1, highest)
                tl.store(notes + 4 * channel + 2, low_share)
                tl.store(notes + 4 * channel + 3, high_share)


@triton.jit
def _add(plane, column, row, amount, inside, HEIGHT: tl.constexpr, WIDTH: tl.constexpr):
    """Add to the pixel that `corner` reads."""
    read = inside & (column >= 0) & (column < WIDTH) & (row >= 0) & (row < HEIGHT)
    tl.atomic_add(plane + row * WIDTH + column, amount, read, sem="relaxed")


@triton.jit
def _spread(
    images, cotangent, to_images, sums, passed, choice, applied, magnitude, sign, codes, numbers, count,
    HEIGHT: tl.constexpr, WIDTH: tl.constexpr, CHANNELS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Write the gradient of the images, each with its own operation. `to_images` must be zero before."""
    image = tl.program_id(0).to(tl.int64)
    code, neutral, reach = operation_of(image, choice, applied, sign, codes, numbers, count)
    value = neutral + tl.load(magnitude + image) * reach
    PIXELS: tl.constexpr = HEIGHT * WIDTH
    first = image * CHANNELS * PIXELS
    source, given, target = images + first, cotangent + first, to_images + first
    notes = sums + image * CHANNELS * 4
    place = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = place < PIXELS
    if (code >= SHEAR_X) & (code <= ROTATE):
        across, down = read_place(code, value, place // WIDTH, place % WIDTH, HEIGHT, WIDTH)
        column, row, left, right, top, bottom = neighbours(across, down)
        for channel in tl.static_range(CHANNELS):
            plane = target + channel * PIXELS
            part = tl.load(given + channel * PIXELS + place, inside, 0)
            _add(plane, column, row, part * (left * top), inside, HEIGHT, WIDTH)
            _add(plane, column + 1, row, part * (right * top), inside, HEIGHT, WIDTH)
            _add(plane, column, row + 1, part * (left * bottom), inside, HEIGHT, WIDTH)
            _add(plane, column + 1, row + 1, part * (right * bottom), inside, HEIGHT, WIDTH)
    elif code == SHARPNESS:
        inner = inside & _is_inner(place, HEIGHT, WIDTH)
        for channel in tl.static_range(CHANNELS):
            plane = passed + first + channel * PIXELS
            part = tl.load(plane + place, inner, 0)
            # The smoothing is symmetric, but pixels on the border were not smoothed.
            around = 4.0 * part
            for dy in tl.static_range(-1, 2):
                for dx in tl.static_range(-1, 2):
                    # Beside a row's ends lie border pixels of other rows, and nothing beyond the last row.
                    near = place + dy * WIDTH + dx
                    around += tl.load(plane + near, inside & _is_inner(near, HEIGHT, WIDTH), 0)
            kept = tl.where(inner, part * value, tl.load(given + channel * PIXELS + place, inside, 0))
            after = kept + around * ((1.0 - value) * (1.0 / 13.0))
            tl.store(target + channel * PIXELS + place, after, inside)
    elif _is_blend(code, CHANNELS):
        mean, to_grey = 0.0, tl.zeros((BLOCK,), tl.float32)
        if code == CONTRAST:
            mean = tl.load(notes)
            to_grey += tl.load(notes + 1)
        if code == COLOR:
            for channel in tl.static_range(CHANNELS):
                part, _ = _passed(code, value, mean, source, given, channel, place, inside, HEIGHT, WIDTH, CHANNELS)
                to_grey += part * (1.0 - value)
        for channel in tl.static_range(CHANNELS):
            luma = 1.0 if CHANNELS == 1 else (RED if channel == 0 else (GREEN if channel == 1 else BLUE))
            part, _ = _passed(code, value, mean, source, given, channel, place, inside, HEIGHT, WIDTH, CHANNELS)
            tl.store(target + channel * PIXELS + place, part * value + luma * to_grey, inside)
    else:
        for channel in tl.static_range(CHANNELS):
            values = tl.load(source + channel * PIXELS + place, inside, 0)
            after = tl.load(given + channel * PIXELS + place, inside, 0)  # untouched, or straight through a staircase
            if code == INVERT:
                after = -after
            if code == SOLARIZE:
                after = tl.where(values * 255.0 >= value, -after, after)
            if code == AUTO_CONTRAST:
                low, high = tl.load(notes + 4 * channel), tl.load(notes + 4 * channel + 1)
                span, _ = span_of(low, high)
                after = after / span + tl.where(values == low, tl.load(notes + 4 * channel + 2), 0.0)
                after += tl.where(values == high, tl.load(notes + 4 * channel + 3), 0.0)
            tl.store(target + channel * PIXELS + place, after, inside)
