"""Operations that move pixels: shear, translation, rotation.

Each is an affine map with bilinear sampling. The map's matrix gives the position in the input that an output pixel
reads; positions outside read `fill`. At the image's edge the value changes linearly into `fill` over one pixel, so the
result is continuous in the parameter and its derivative includes the motion of the edge. PIL cuts the edge instead; the
two agree away from that one-pixel band.

Conventions are those of AutoAugment's PIL code. Shear is about the top left corner, and a positive shear or translation
reads from further right or down. A positive angle turns counter-clockwise about the centre.
"""

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from madao.ops.tone import truncate

Fill = float | Sequence[float]
"""Colour outside the image in [0, 1], also for uint8: one number, or one per channel."""

_COORDINATE_ROUNDING = 1 / 32
"""Levels added before truncation: rounded coordinates would otherwise turn 100 into 99.999 and that into 99."""


def shear_x(images: Tensor, shear: Tensor, fill: Fill = 0.0) -> Tensor:
    """Shear horizontally: output (x, y) reads input (x + shear · y, y). `shear`: `[B]`."""
    return warp(images, shear_x_matrix(shear, *images.shape[2:]), fill)


def shear_y(images: Tensor, shear: Tensor, fill: Fill = 0.0) -> Tensor:
    """Shear vertically: output (x, y) reads input (x, y + shear · x). `shear`: `[B]`."""
    return warp(images, shear_y_matrix(shear, *images.shape[2:]), fill)


def translate_x(images: Tensor, fraction: Tensor, fill: Fill = 0.0) -> Tensor:
    """Translate horizontally: output (x, y) reads input (x + fraction · width, y). `fraction`: `[B]`."""
    return warp(images, translate_x_matrix(fraction, *images.shape[2:]), fill)


def translate_y(images: Tensor, fraction: Tensor, fill: Fill = 0.0) -> Tensor:
    """Translate vertically: output (x, y) reads input (x, y + fraction · height). `fraction`: `[B]`."""
    return warp(images, translate_y_matrix(fraction, *images.shape[2:]), fill)


def rotate(images: Tensor, degrees: Tensor, fill: Fill = 0.0) -> Tensor:
    """Rotate counter-clockwise about the centre. `degrees`: `[B]`."""
    return warp(images, rotate_matrix(degrees, *images.shape[2:]), fill)


# The matrices of the operations, `[B]` → `[B, 2, 3]`, for `warp` and for masks, boxes and points.


def shear_x_matrix(shear: Tensor, height: int, width: int) -> Tensor:
    """Return the matrix of `shear_x`."""
    one, zero = torch.ones_like(shear), torch.zeros_like(shear)
    slope = shear * (height / width)
    return _matrix([one, slope, slope], [zero, one, zero])


def shear_y_matrix(shear: Tensor, height: int, width: int) -> Tensor:
    """Return the matrix of `shear_y`."""
    one, zero = torch.ones_like(shear), torch.zeros_like(shear)
    slope = shear * (width / height)
    return _matrix([one, zero, zero], [slope, one, slope])


def translate_x_matrix(fraction: Tensor, height: int, width: int) -> Tensor:
    """Return the matrix of `translate_x`, the same for every height and width."""
    one, zero = torch.ones_like(fraction), torch.zeros_like(fraction)
    return _matrix([one, zero, 2 * fraction], [zero, one, zero])


def translate_y_matrix(fraction: Tensor, height: int, width: int) -> Tensor:
    """Return the matrix of `translate_y`, the same for every height and width."""
    one, zero = torch.ones_like(fraction), torch.zeros_like(fraction)
    return _matrix([one, zero, zero], [zero, one, 2 * fraction])


def rotate_matrix(degrees: Tensor, height: int, width: int) -> Tensor:
    """Return the matrix of `rotate`."""
    radians = degrees * (math.pi / 180)
    cosine, sine, zero = radians.cos(), radians.sin(), torch.zeros_like(degrees)
    return _matrix([cosine, -sine * (height / width), zero], [sine * (width / height), cosine, zero])


def warp(images: Tensor, matrix: Tensor, fill: Fill = 0.0) -> Tensor:
    """Sample each image bilinearly at the positions its matrix gives.

    `matrix`, `[B, 2, 3]`, maps output to input positions, both in [−1, 1] from edge to edge, as
    `torch.nn.functional.affine_grid` does without `align_corners`.
    """
    dtype = matrix.dtype if images.dtype == torch.uint8 else images.dtype
    return resample(images, sampling_grid(matrix.to(dtype), images.shape[2], images.shape[3]), fill)


def resample(images: Tensor, grid: Tensor, fill: Fill = 0.0) -> Tensor:
    """Sample each image bilinearly at the positions of a `sampling_grid`, in the dtype of float images."""
    integer = images.dtype == torch.uint8
    # uint8 is truncated as in PIL; see _COORDINATE_ROUNDING.
    values = images.to(grid.dtype).add_(_COORDINATE_ROUNDING) if integer else images
    colour = None if fill == 0 else _colour(fill, values) * (255 if integer else 1)
    shifted = values if colour is None else values - colour
    sampled = F.grid_sample(shifted, grid, mode="bilinear", padding_mode="zeros", align_corners=False)
    # grid_sample reads zero outside, so images are shifted for `colour` to be zero.
    filled = sampled if colour is None else sampled + colour
    return truncate(filled) if integer else filled


def _matrix(first: list[Tensor], second: list[Tensor]) -> Tensor:
    return torch.stack([torch.stack(first, -1), torch.stack(second, -1)], -2)


def sampling_grid(matrix: Tensor, height: int, width: int) -> Tensor:
    """Return the positions in [−1, 1] from edge to edge that the output pixels read, `[B, H, W, 2]`.

    `F.affine_grid` does the same with a matrix product per pixel, at five times the cost.
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
