# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator, misc"
# ruff: noqa: N803, N806, SIM108 -- kernel constants are in capitals, and branches stay as statements
"""`dispatch` as fused Triton kernels for CUDA, with static shapes and without waits of the host.

A stage is two launches. The first reads images whose operation needs the whole image (AutoContrast, Equalize, Contrast)
and stores a table or a mean. The second writes every image once. The kernel reads which operation an image gets, so
only values depend on the draw, and a CUDA graph can hold the launches.

`dispatch.grouped` is the reference, and tests compare the two. On uint8 the levels are the same, except for one level
in geometric operations where a coordinate falls on the edge between two; float32 agrees to rounding.
"""

import functools
from collections.abc import Sequence
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from madao.ops.geometric import Fill
from madao.ops.registry import PAPER, Operation, built_in

_CODES = {name: code for code, name in enumerate(PAPER)}
SHEAR_X, SHEAR_Y, TRANSLATE_X, TRANSLATE_Y, ROTATE = (tl.constexpr(code) for code in range(5))
INVERT, AUTO_CONTRAST, EQUALIZE, SOLARIZE, COLOR = (tl.constexpr(code) for code in range(5, 10))
POSTERIZE, CONTRAST, BRIGHTNESS, SHARPNESS = (tl.constexpr(code) for code in range(10, 14))
UNTOUCHED = tl.constexpr(-1)
RADIANS = tl.constexpr(0.017453292519943295)
RED, GREEN, BLUE = (tl.constexpr(part) for part in (0.299, 0.587, 0.114))
"""Luma of ITU-R 601."""

SMALL, _WRITTEN = 1024, 512
"""Pixels that a program writes: a whole image of 32 × 32, or a part of a larger one. Measured on an H200."""
_INSPECTED = 8192
"""Most pixels that a program reads in one step. It loops over the whole image, so fewer steps wait less."""


OPTIONS = {"enable_fp_fusion": False}
"""Round product and sum separately, as PIL and `dispatch` do."""


def supported(images: Tensor, operations: Sequence[Operation]) -> bool:
    """Return whether the kernels can process these images and operations."""
    return images.dtype in (torch.uint8, torch.float32) and images.shape[1] in (1, 3) and all(map(built_in, operations))


@functools.lru_cache(maxsize=64)
def _table(operations: tuple[Operation, ...], device: torch.device) -> tuple[Tensor, Tensor]:
    """Return the operations' codes, and `[n, 3]` neutral value, span and whether signed, for the kernels."""
    codes = torch.tensor([_CODES[operation.name] for operation in operations], dtype=torch.int32, device=device)
    ranges = [operation.range or (0.0, 0.0) for operation in operations]
    rows = [(low, high - low, float(o.signed)) for o, (low, high) in zip(operations, ranges, strict=True)]
    return codes, torch.tensor(rows, dtype=torch.float32, device=device)


def draw_arguments(
    operations: Sequence[Operation], choice: Tensor, magnitude: Tensor, sign: Tensor, applied: Tensor | None
) -> tuple[Any, ...]:
    """Return a draw as the kernels' arguments: contiguous tensors."""
    applied = torch.ones_like(choice, dtype=torch.bool) if applied is None else applied
    fields = (choice, applied.view(torch.uint8), magnitude.float(), sign.float())
    return *(field.contiguous() for field in fields), *_table(tuple(operations), choice.device), len(operations)


def fill_arguments(fill: Fill) -> tuple[float, ...]:
    """Return the fill as the kernels' arguments: one number for each of three channels."""
    return (float(fill),) * 3 if isinstance(fill, int | float) else tuple(map(float, fill)) * (3 // len(fill))


def fused(
    images: Tensor,
    operations: Sequence[Operation],
    choice: Tensor,
    magnitude: Tensor,
    sign: Tensor,
    applied: Tensor | None = None,
    fill: Fill = 0.0,
) -> Tensor:
    """Dispatch `supported` images, without derivatives. The host would have to wait for checks, so there are none.

    An image with an invalid choice does not change.
    """
    images = images.contiguous()
    count, channels, height, width = images.shape
    result = torch.empty_like(images)
    if not images.numel():
        return result
    lut = torch.empty(count, channels, 256, dtype=torch.float32, device=images.device)
    mean = torch.empty(count, dtype=torch.float32, device=images.device)
    draw = draw_arguments(operations, choice, magnitude, sign, applied)
    colour = fill_arguments(fill)
    shape = {"HEIGHT": height, "WIDTH": width, "CHANNELS": channels, "INTEGER": images.dtype == torch.uint8}
    inspected = min(triton.next_power_of_2(height * width), _INSPECTED)
    warps = 4 if inspected <= SMALL else 32
    written = SMALL if height * width <= SMALL else _WRITTEN
    grid = (count, triton.cdiv(height * width, written))
    with torch.cuda.device_of(images):  # Triton launches on the current GPU, whatever the tensors say
        _inspect[(count, channels)](images, lut, mean, *draw, **shape, BLOCK=inspected, num_warps=warps, **OPTIONS)
        _write[grid](images, result, lut, mean, *draw, *colour, **shape, BLOCK=written, num_warps=4, **OPTIONS)
    return result


@triton.jit
def operation_of(image, choice, applied, sign, codes, numbers, count):
    """Return code, neutral value and reach of an operation: `Operation.value` is neutral + magnitude · reach."""
    index = tl.load(choice + image)
    known = (index >= 0) & (index < count)
    index = tl.where(known, index, 0)
    code = tl.where(known & (tl.load(applied + image) != 0), tl.load(codes + index), UNTOUCHED)
    side = tl.where(tl.load(numbers + 3 * index + 2) != 0, tl.load(sign + image), 1.0)
    return code, tl.load(numbers + 3 * index), side * tl.load(numbers + 3 * index + 1)


@triton.jit
def _rounded(values):
    """Round values that are not negative to the nearest whole number, halves to the even one."""
    up = tl.floor(values + 0.5)
    return tl.where((up - values == 0.5) & (up - 2 * tl.floor(up / 2) == 1), up - 1, up)


@triton.jit
def grey_at(source, place, inside, PIXELS: tl.constexpr, CHANNELS: tl.constexpr, INTEGER: tl.constexpr):
    """Return the grey image at some places; for levels PIL's whole number, which float32 computes exactly."""
    grey = tl.load(source + place, inside, 0).to(tl.float32)
    if CHANNELS == 3:
        green = tl.load(source + PIXELS + place, inside, 0).to(tl.float32)
        blue = tl.load(source + 2 * PIXELS + place, inside, 0).to(tl.float32)
        if INTEGER:
            grey = tl.floor((grey * 19595.0 + green * 38470.0 + blue * 7471.0 + 32768.0) * (1.0 / 65536.0))
        else:
            grey = grey * RED + green * GREEN + blue * BLUE
    return grey


@triton.jit
def grey_mean(source, PIXELS: tl.constexpr, CHANNELS: tl.constexpr, INTEGER: tl.constexpr, BLOCK: tl.constexpr):
    """Return the mean of the grey image; for levels a whole number, as in PIL."""
    total = tl.zeros((BLOCK,), tl.int32) if INTEGER else tl.zeros((BLOCK,), tl.float32)
    for start in range(0, PIXELS, BLOCK):
        place = start + tl.arange(0, BLOCK)
        inside = place < PIXELS
        grey = grey_at(source, place, inside, PIXELS, CHANNELS, INTEGER)
        total += tl.where(inside, grey, 0.0).to(total.dtype)
    if INTEGER:
        mean = tl.floor(tl.sum(total.to(tl.int64), 0).to(tl.float64) / PIXELS + 0.5).to(tl.float32)
    else:
        mean = tl.sum(total, 0) / PIXELS
    return mean


@triton.jit
def extremes(plane, PIXELS: tl.constexpr, BLOCK: tl.constexpr):
    """Return the darkest and the brightest value of a channel."""
    low, high = tl.full((), 255.0, tl.float32), tl.full((), 0.0, tl.float32)
    for start in range(0, PIXELS, BLOCK):
        place = start + tl.arange(0, BLOCK)
        inside = place < PIXELS
        low = tl.minimum(low, tl.min(tl.load(plane + place, inside, 255).to(tl.float32), 0))
        high = tl.maximum(high, tl.max(tl.load(plane + place, inside, 0).to(tl.float32), 0))
    return low, high


@triton.jit
def span_of(low, high):
    """Return the divisor of AutoContrast, and whether the channel counts as constant and must not change."""
    flat = high - low < 0.5 / 255.0
    return tl.where(flat, 1.0, high - low), flat


@triton.jit
def _inspect(
    images, lut, mean, choice, applied, magnitude, sign, codes, numbers, count,
    HEIGHT: tl.constexpr, WIDTH: tl.constexpr, CHANNELS: tl.constexpr, INTEGER: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Store a table of levels per channel, or the mean of the grey image, for the second launch."""
    image, channel = tl.program_id(0).to(tl.int64), tl.program_id(1)
    code, _, _ = operation_of(image, choice, applied, sign, codes, numbers, count)
    PIXELS: tl.constexpr = HEIGHT * WIDTH
    plane = images + (image * CHANNELS + channel) * PIXELS
    levels = tl.arange(0, 256)
    table = lut + (image * CHANNELS + channel) * 256 + levels
    if code == AUTO_CONTRAST:
        low, high = extremes(plane, PIXELS, BLOCK)
        if INTEGER:
            # float64, as PIL's table is.
            span = high.to(tl.float64) - low.to(tl.float64)
            scale = 255.0 / tl.where(span > 0, span, 1.0)
            stretched = levels.to(tl.float64) * scale - low.to(tl.float64) * scale
            stretched = tl.floor(tl.minimum(tl.maximum(stretched, 0.0), 255.0)).to(tl.float32)
            tl.store(table, tl.where(span > 0, stretched, levels.to(tl.float32)))
        else:
            tl.store(table, tl.where(levels == 0, low, high))
    if code == EQUALIZE:
        histogram = tl.zeros((256,), tl.int32)
        for start in range(0, PIXELS, BLOCK):
            place = start + tl.arange(0, BLOCK)
            inside = place < PIXELS
            values = tl.load(plane + place, inside, 0)
            if INTEGER:
                level = values.to(tl.int32)
            else:
                level = tl.minimum(_rounded(values * 255.0), 255.0).to(tl.int32)
            histogram += tl.histogram(level, 256, inside)
        brightest = tl.max(tl.where(histogram > 0, levels, 0), 0)
        step = (PIXELS - tl.sum(tl.where(levels == brightest, histogram, 0), 0)) // 255
        before = tl.cumsum(histogram, 0) - histogram
        flat = (step // 2 + before) // tl.maximum(step, 1)
        flat = tl.minimum(flat, 255).to(tl.float32)
        # −1 marks images without anything to equalise: they do not change, also between two levels.
        tl.store(table, tl.where(step > 0, flat, -1.0))
    if (code == CONTRAST) & (channel == 0):
        tl.store(mean + image, grey_mean(plane, PIXELS, CHANNELS, INTEGER, BLOCK))


@triton.jit
def _blend(values, degenerate, factor, INTEGER: tl.constexpr):
    """Return degenerate + factor · (values − degenerate), clipped: levels truncated, floats rounded as `torch.lerp`."""
    if INTEGER:
        blended = (values - degenerate) * factor + degenerate
        blended = tl.floor(tl.minimum(tl.maximum(blended, 0.0), 255.0))
    else:
        blended = tl.minimum(tl.maximum(unclipped(values, degenerate, factor), 0.0), 1.0)
    return blended


@triton.jit
def unclipped(values, degenerate, factor):
    """Return a blend of floats before clipping, bit for bit as `torch.lerp` rounds it."""
    weight = 1.0 - factor
    near = values + weight * (degenerate - values)
    far = degenerate - (degenerate - values) * (1.0 - weight)
    return tl.where(tl.abs(weight) < 0.5, near, far)


@triton.jit
def smoothed(plane, place, inner, values, WIDTH: tl.constexpr):
    """Return the smoothed image of Sharpness at `inner` places, those not on the border."""
    total = 4.0 * values
    for dy in tl.static_range(-1, 2):
        for dx in tl.static_range(-1, 2):
            total += tl.load(plane + place + dy * WIDTH + dx, inner, 0).to(tl.float32)
    return total * (1.0 / 13.0)


@triton.jit
def solarized(values, threshold, INTEGER: tl.constexpr):
    """Invert values at or above the threshold level."""
    above = (values if INTEGER else values * 255.0) >= threshold
    return tl.where(above, (255.0 if INTEGER else 1.0) - values, values)


@triton.jit
def posterized(values, bits, INTEGER: tl.constexpr):
    """Keep the highest bits of each level; eight bits also keep floats between two levels."""
    kept = tl.minimum(tl.maximum(tl.floor(bits + 0.5), 0.0), 8.0)
    mask = 256 - tl.exp2(8.0 - kept).to(tl.int32)
    if INTEGER:
        after = (values.to(tl.int32) & mask).to(tl.float32)
    else:
        level = tl.minimum(tl.maximum(_rounded(values * 255.0), 0.0), 255.0).to(tl.int32)
        after = tl.where(kept == 8.0, values, (level & mask).to(tl.float32) / 255.0)
    return after


@triton.jit
def affine(code, value, HEIGHT: tl.constexpr, WIDTH: tl.constexpr):
    """Return the matrix of a geometric operation, as in `geometric.py`: positions in [−1, 1] from edge to edge."""
    ASPECT: tl.constexpr = WIDTH / HEIGHT
    INVERSE: tl.constexpr = HEIGHT / WIDTH
    xx, xy, x1 = 1.0, 0.0, 0.0
    yx, yy, y1 = 0.0, 1.0, 0.0
    if code == SHEAR_X:
        xy = value * INVERSE
        x1 = xy
    if code == SHEAR_Y:
        yx = value * ASPECT
        y1 = yx
    if code == TRANSLATE_X:
        x1 = 2.0 * value
    if code == TRANSLATE_Y:
        y1 = 2.0 * value
    if code == ROTATE:
        radians = value * RADIANS
        xx = tl.cos(radians)
        yy = xx
        xy = -tl.sin(radians) * INVERSE
        yx = tl.sin(radians) * ASPECT
    return xx, xy, x1, yx, yy, y1


@triton.jit
def centre_of(row, column, HEIGHT: tl.constexpr, WIDTH: tl.constexpr):
    """Return the centre of a pixel, x and y, in [−1, 1] from edge to edge."""
    return (2 * column + 1 - WIDTH).to(tl.float32) / WIDTH, (2 * row + 1 - HEIGHT).to(tl.float32) / HEIGHT


@triton.jit
def read_place(code, value, row, column, HEIGHT: tl.constexpr, WIDTH: tl.constexpr):
    """Return the position that a pixel reads in a geometric operation, as column and row."""
    xx, xy, x1, yx, yy, y1 = affine(code, value, HEIGHT, WIDTH)
    x, y = centre_of(row, column, HEIGHT, WIDTH)
    across = ((xx * x + x1 + xy * y + 1.0) * WIDTH - 1.0) * 0.5
    down = ((yx * x + y1 + yy * y + 1.0) * HEIGHT - 1.0) * 0.5
    # Positions far outside read nothing; clipping keeps integers from overflowing.
    return tl.minimum(tl.maximum(across, -2.0), WIDTH + 1.0), tl.minimum(tl.maximum(down, -2.0), HEIGHT + 1.0)


@triton.jit
def neighbours(across, down):
    """Return column and row of the pixel to the top left of a position, and the weights left, right, top, bottom."""
    left, top = tl.floor(across), tl.floor(down)
    return left.to(tl.int32), top.to(tl.int32), left + 1.0 - across, across - left, top + 1.0 - down, down - top


@triton.jit
def corner(plane, column, row, shift, HEIGHT: tl.constexpr, WIDTH: tl.constexpr):
    """Return one of the four neighbours of a position; zero outside the image."""
    inside = (column >= 0) & (column < WIDTH) & (row >= 0) & (row < HEIGHT)
    value = tl.load(plane + row * WIDTH + column, inside, 0).to(tl.float32) + shift
    return tl.where(inside, value, 0.0)


@triton.jit
def _write(
    images, result, lut, mean, choice, applied, magnitude, sign, codes, numbers, count, fill_0, fill_1, fill_2,
    HEIGHT: tl.constexpr, WIDTH: tl.constexpr, CHANNELS: tl.constexpr, INTEGER: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Write every image once, with its own operation."""
    image = tl.program_id(0).to(tl.int64)
    code, neutral, reach = operation_of(image, choice, applied, sign, codes, numbers, count)
    value = neutral + tl.load(magnitude + image) * reach
    PIXELS: tl.constexpr = HEIGHT * WIDTH
    place = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = place < PIXELS
    row, column = place // WIDTH, place % WIDTH
    source = images + image * CHANNELS * PIXELS
    target = result + image * CHANNELS * PIXELS
    if (code >= SHEAR_X) & (code <= ROTATE):
        across, down = read_place(code, value, row, column, HEIGHT, WIDTH)
        first_column, first_row, left, right, top, bottom = neighbours(across, down)
        for channel in tl.static_range(CHANNELS):
            fill = fill_0 if channel == 0 else (fill_1 if channel == 1 else fill_2)
            colour = fill * (255.0 if INTEGER else 1.0)
            shift = (0.03125 if INTEGER else 0.0) - colour
            plane = source + channel * PIXELS
            sampled = corner(plane, first_column, first_row, shift, HEIGHT, WIDTH) * (left * top)
            sampled += corner(plane, first_column + 1, first_row, shift, HEIGHT, WIDTH) * (right * top)
            sampled += corner(plane, first_column, first_row + 1, shift, HEIGHT, WIDTH) * (left * bottom)
            sampled += corner(plane, first_column + 1, first_row + 1, shift, HEIGHT, WIDTH) * (right * bottom)
            tl.store(target + channel * PIXELS + place, (sampled + colour).to(result.dtype.element_ty), inside)
    elif (code == COLOR) & (CHANNELS == 3):
        grey = grey_at(source, place, inside, PIXELS, CHANNELS, INTEGER)
        for channel in tl.static_range(CHANNELS):
            values = tl.load(source + channel * PIXELS + place, inside, 0).to(tl.float32)
            after = _blend(values, grey, value, INTEGER)
            tl.store(target + channel * PIXELS + place, after.to(result.dtype.element_ty), inside)
    else:
        WHOLE: tl.constexpr = 255.0 if INTEGER else 1.0
        for channel in tl.static_range(CHANNELS):
            plane = source + channel * PIXELS
            values = tl.load(plane + place, inside, 0).to(tl.float32)
            after = values
            if code == INVERT:
                after = WHOLE - values
            if code == SOLARIZE:
                after = solarized(values, value, INTEGER)
            if code == POSTERIZE:
                after = posterized(values, value, INTEGER)
            if code == CONTRAST:
                after = _blend(values, tl.load(mean + image), value, INTEGER)
            if code == BRIGHTNESS:
                after = _blend(values, 0.0, value, INTEGER)
            if code == SHARPNESS:
                inner = inside & (row > 0) & (row < HEIGHT - 1) & (column > 0) & (column < WIDTH - 1)
                smooth = smoothed(plane, place, inner, values, WIDTH)
                if INTEGER:
                    smooth = tl.floor(smooth + 0.5)
                after = tl.where(inner, _blend(values, smooth, value, INTEGER), values)
            if (code == AUTO_CONTRAST) | (code == EQUALIZE):
                table = lut + (image * CHANNELS + channel) * 256
                if INTEGER:
                    known = tl.load(table + values.to(tl.int32), inside, 0)
                    after = tl.where(known < 0, values, known)
                else:
                    if code == EQUALIZE:
                        level = tl.minimum(tl.maximum(_rounded(values * 255.0), 0.0), 255.0).to(tl.int32)
                        known = tl.load(table + level, inside, 0)
                        after = tl.where(known < 0, values, known / 255.0)
                    else:
                        low = tl.load(table)
                        span, flat = span_of(low, tl.load(table + 1))
                        after = tl.where(flat, values, (values - low) / span)
            tl.store(target + channel * PIXELS + place, after.to(result.dtype.element_ty), inside)
