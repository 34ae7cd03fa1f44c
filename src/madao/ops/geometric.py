"""Operations that move pixels: shear, translation, rotation.

Each is one affine map and one bilinear sampling. An output pixel takes its value from a place in the input
found with the map's matrix; a place outside takes `fill`. Between an outermost pixel and the outside the value falls
off linearly over one pixel, so the result is continuous in the parameter and its derivative is the whole
derivative, with the moving edge in it. (PIL cuts there instead: away from that one-pixel band the two agree.)

Conventions are those of AutoAugment's PIL code: shear is about the top left corner and a positive shear or
translation reads from further right or down; a positive angle turns counter-clockwise about the centre.
"""

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from madao.ops.quantize import truncate

Fill = float | Sequence[float]
"""The colour outside the image in [0, 1], also for uint8: one number, or one a channel."""

_COORDINATE_ROUNDING = 1 / 32
"""Levels added before truncation, so that float32 coordinates do not turn 100 into 99.999 and that into 99."""


def shear_x(images: Tensor, shear: Tensor, fill: Fill = 0.0) -> Tensor:
    """Output (x, y) reads input (x + shear · y, y). `shear`: `[B]`."""
    return warp(images, shear_x_matrix(shear, *images.shape[2:]), fill)


def shear_y(images: Tensor, shear: Tensor, fill: Fill = 0.0) -> Tensor:
    """Output (x, y) reads input (x, y + shear · x). `shear`: `[B]`."""
    return warp(images, shear_y_matrix(shear, *images.shape[2:]), fill)


def translate_x(images: Tensor, fraction: Tensor, fill: Fill = 0.0) -> Tensor:
    """Output (x, y) reads input (x + fraction · width, y). `fraction`: `[B]`."""
    return warp(images, translate_x_matrix(fraction, *images.shape[2:]), fill)


def translate_y(images: Tensor, fraction: Tensor, fill: Fill = 0.0) -> Tensor:
    """Output (x, y) reads input (x, y + fraction · height). `fraction`: `[B]`."""
    return warp(images, translate_y_matrix(fraction, *images.shape[2:]), fill)


def rotate(images: Tensor, degrees: Tensor, fill: Fill = 0.0) -> Tensor:
    """Turn counter-clockwise about the centre. `degrees`: `[B]`."""
    return warp(images, rotate_matrix(degrees, *images.shape[2:]), fill)


# The matrices by themselves, `[B]` → `[B, 2, 3]`, as `warp` takes them: masks, boxes and points move by them too.


def shear_x_matrix(shear: Tensor, height: int, width: int) -> Tensor:
    """The matrix of `shear_x`."""
    one, zero = torch.ones_like(shear), torch.zeros_like(shear)
    slope = shear * (height / width)
    return _matrix([one, slope, slope], [zero, one, zero])


def shear_y_matrix(shear: Tensor, height: int, width: int) -> Tensor:
    """The matrix of `shear_y`."""
    one, zero = torch.ones_like(shear), torch.zeros_like(shear)
    slope = shear * (width / height)
    return _matrix([one, zero, zero], [slope, one, slope])


def translate_x_matrix(fraction: Tensor, height: int, width: int) -> Tensor:
    """The matrix of `translate_x`; the same for every height and width."""
    one, zero = torch.ones_like(fraction), torch.zeros_like(fraction)
    return _matrix([one, zero, 2 * fraction], [zero, one, zero])


def translate_y_matrix(fraction: Tensor, height: int, width: int) -> Tensor:
    """The matrix of `translate_y`; the same for every height and width."""
    one, zero = torch.ones_like(fraction), torch.zeros_like(fraction)
    return _matrix([one, zero, zero], [zero, one, 2 * fraction])


def rotate_matrix(degrees: Tensor, height: int, width: int) -> Tensor:
    """The matrix of `rotate`."""
    radians = degrees * (math.pi / 180)
    cosine, sine, zero = radians.cos(), radians.sin(), torch.zeros_like(degrees)
    return _matrix([cosine, -sine * (height / width), zero], [sine * (width / height), cosine, zero])


def warp(images: Tensor, matrix: Tensor, fill: Fill = 0.0) -> Tensor:
    """Sample each image bilinearly at the places its matrix gives.

    Args:
        images: `[B, C, H, W]`, uint8 or float.
        matrix: `[B, 2, 3]`, from output to input positions, both in [−1, 1] from edge to edge of the
            image (`align_corners=False`, as in `torch.nn.functional.affine_grid`).
        fill: The colour outside, in [0, 1].
    """
    dtype = matrix.dtype if images.dtype == torch.uint8 else images.dtype
    return resample(images, sampling_grid(matrix.to(dtype), images.shape[2], images.shape[3]), fill)


def resample(images: Tensor, grid: Tensor, fill: Fill = 0.0) -> Tensor:
    """Sample each image bilinearly at the places of a `sampling_grid`, in the images' dtype where they are float."""
    integer = images.dtype == torch.uint8
    # A little is added to uint8, which is truncated as PIL truncates: see _COORDINATE_ROUNDING.
    values = images.to(grid.dtype).add_(_COORDINATE_ROUNDING) if integer else images
    colour = None if fill == 0 else _colour(fill, values) * (255 if integer else 1)
    shifted = values if colour is None else values - colour
    sampled = F.grid_sample(shifted, grid, mode="bilinear", padding_mode="zeros", align_corners=False)
    # What lies outside is zero in (images − colour), hence `colour` in the sum.
    filled = sampled if colour is None else sampled + colour
    return truncate(filled) if integer else filled


def _matrix(first: list[Tensor], second: list[Tensor]) -> Tensor:
    return torch.stack([torch.stack(first, -1), torch.stack(second, -1)], -2)


def sampling_grid(matrix: Tensor, height: int, width: int) -> Tensor:
    """The places, in [−1, 1] from edge to edge, that the pixels of the output read: `[B, H, W, 2]`.

    `F.affine_grid` as a sum over whole rows: a matrix product per pixel costs five times as much.
    """
    x, y = (
        torch.arange(1 - side, side, 2, dtype=matrix.dtype, device=matrix.device) / side for side in (width, height)
    )
    count = len(matrix)
    along_x = (matrix[:, None, :, 0] * x[:, None] + matrix[:, None, :, 2]).reshape(count, 1, 2 * width)
    slope = matrix[:, None, :, 1].expand(count, width, 2).reshape(count, 1, 2 * width)
    return torch.addcmul(along_x, slope, y[:, None]).reshape(count, height, width, 2)


def _colour(fill: Fill, values: Tensor) -> Tensor:
    return torch.as_tensor(fill, dtype=values.dtype, device=values.device).reshape(-1, 1, 1)
