"""Synthetic shifts between training and validation images, for which the best augmentation is known beforehand."""

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from madao.labels import IGNORED


def _warp(images: Tensor, matrix: Tensor) -> Tensor:
    grid = F.affine_grid(matrix, list(images.shape), align_corners=False)
    return F.grid_sample(images, grid, mode="bilinear", padding_mode="zeros", align_corners=False)


def _affine(count: int, entries: dict[tuple[int, int], Tensor]) -> Tensor:
    matrix = torch.eye(2, 3).repeat(count, 1, 1)
    for (row, column), values in entries.items():
        matrix[:, row, column] = values
    return matrix


def _rotation(strength: Tensor) -> Tensor:
    angle = strength[0] * math.pi / 6
    cosine, sine = angle.cos(), angle.sin()
    return _affine(len(angle), {(0, 0): cosine, (0, 1): -sine, (1, 0): sine, (1, 1): cosine})


def _translation(strength: Tensor) -> Tensor:
    # A step of 2 is the side of the image.
    return _affine(strength.shape[1], {(0, 2): 0.5 * strength[0], (1, 2): 0.5 * strength[1]})


def _shearing(strength: Tensor) -> Tensor:
    return _affine(strength.shape[1], {(0, 1): 0.5 * strength[0]})


_MATRICES: dict[str, Callable[[Tensor], Tensor]] = {"rotate": _rotation, "translate": _translation, "shear": _shearing}
"""For the shifts that move pixels: the function from strengths to the matrices that images are read through."""


def _brightness(images: Tensor, strength: Tensor) -> Tensor:
    return (images * (1 + 0.8 * strength[0]).reshape(-1, 1, 1, 1)).clamp(0, 1)


def _strong_brightness(images: Tensor, strength: Tensor) -> Tensor:
    change = strength[0].sign() * (0.6 + 0.3 * strength[0].abs())
    return (images * (1 + change).reshape(-1, 1, 1, 1)).clamp(0, 1)


def _invert(images: Tensor, strength: Tensor) -> Tensor:
    return torch.where(strength[0].reshape(-1, 1, 1, 1) > 0, 1 - images, images)


SHIFTS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "rotate": lambda images, strength: _warp(images, _rotation(strength)),
    "translate": lambda images, strength: _warp(images, _translation(strength)),
    "shear": lambda images, strength: _warp(images, _shearing(strength)),
    "brightness": _brightness,
    "invert": _invert,
    "none": lambda images, _: images,
}
"""By name: rotation to ±30°, translation to ±25 % of each side, shear to ±0.5, brightness by a factor of 0.2 to 1.8,
inversion of every second image."""

_TWO = SHIFTS["rotate"], _strong_brightness
"""Rotation to ±30°, and brightness by a factor of 0.1 to 0.4 or 1.6 to 1.9. Models soon learn weaker factors under any
policy, which would leave only rotation to gain from."""

BY_CLASS = "rotate-or-brightness"
"""Rotation of digits 0 to 4, and brightness of digits 5 to 9."""

HALVES = ("0", "1", "2", "3", "4"), ("5", "6", "7", "8", "9")
"""The classes of either half of `BY_CLASS`."""

BY_TONE = "by-tone"
"""Rotation of light digits, and brightness of dark ones. Every second digit, of training too, is dark on light."""

PLANTED = (*SHIFTS, BY_CLASS, BY_TONE)
"""The names of all shifts."""

FAMILIES: dict[str, tuple[str, ...]] = {
    "rotate": ("Rotate",),
    "translate": ("TranslateX", "TranslateY"),
    "shear": ("ShearX", "ShearY"),
    "brightness": ("Brightness",),
    "invert": ("Invert",),
    BY_CLASS: ("Rotate", "Brightness"),
    BY_TONE: ("Rotate", "Brightness"),
    "none": (),
}
"""The operations that imitate each shift, which a policy should find."""


def dark_on_light(images: Tensor) -> Tensor:
    """Return which images, uint8 `[N, C, H, W]`, are dark on light, `[N]`: those with a mean above the middle."""
    return images.float().mean((1, 2, 3)) > 127.5


def plant(images: Tensor, labels: Tensor, shift: str, seed: int) -> Tensor:
    """Apply a shift to images. Each image draws its strength uniformly from [−1, 1].

    Args:
        images: uint8 `[N, C, H, W]`.
        labels: Label of each image, `[N]`. Only `BY_CLASS` reads them.
        shift: A name in `PLANTED`.
        seed: Seed of the strengths.
    """
    strength = _strengths(len(images), seed)
    shifts = (SHIFTS[shift],) if shift in SHIFTS else _TWO
    moved = [function(images / 255, strength) for function in shifts]
    second = dark_on_light(images) if shift == BY_TONE else labels >= len(HALVES[0])
    return (torch.where(second.reshape(-1, 1, 1, 1), moved[-1], moved[0]) * 255).round().to(torch.uint8)


def plant_masks(masks: Tensor, shift: str, seed: int) -> Tensor:
    """Move masks `[N, H, W]` as `plant` moves their images, to the nearest pixel."""
    if shift not in _MATRICES:
        return masks
    planes = masks[:, None].float() + 1  # since 0 means outside of the image
    matrix = _MATRICES[shift](_strengths(len(masks), seed))
    grid = F.affine_grid(matrix, list(planes.shape), align_corners=False)
    read = F.grid_sample(planes, grid, mode="nearest", padding_mode="zeros", align_corners=False)[:, 0]
    return torch.where(read == 0, IGNORED, read - 1).to(masks.dtype)


def _strengths(count: int, seed: int) -> Tensor:
    return torch.rand(2, count, generator=torch.Generator().manual_seed(seed)) * 2 - 1
