"""Masks moved by geometric operations, one pixel at a time."""

import math
from collections.abc import Callable

import torch
from torch import Tensor

# Where output pixel (x, y), counted from edges, reads the input: written from the documentation, in float64.
PLACES: dict[str, Callable[[float, float, float, int, int], tuple[float, float]]] = {
    "ShearX": lambda x, y, v, h, w: (x + v * y, y),
    "ShearY": lambda x, y, v, h, w: (x, y + v * x),
    "TranslateX": lambda x, y, v, h, w: (x + v * w, y),
    "TranslateY": lambda x, y, v, h, w: (x, y + v * h),
    "Rotate": lambda x, y, v, h, w: (
        w / 2 + math.cos(math.radians(v)) * (x - w / 2) - math.sin(math.radians(v)) * (y - h / 2),
        h / 2 + math.sin(math.radians(v)) * (x - w / 2) + math.cos(math.radians(v)) * (y - h / 2),
    ),
}


def brute_force(name: str, mask: Tensor, value: float) -> tuple[Tensor, Tensor]:
    """Return the moved mask, and where the nearest pixel is unique: no position lies on the line between two."""
    height, width = mask.shape[-2:]
    moved, sure = torch.zeros_like(mask), torch.ones(height, width, dtype=torch.bool)
    for row in range(height):
        for column in range(width):
            x, y = PLACES[name](column + 0.5, row + 0.5, value, height, width)
            if 0 <= x < width and 0 <= y < height:
                moved[..., row, column] = mask[..., int(y), int(x)]
            sure[row, column] = min(abs(x - round(x)), abs(y - round(y))) > 1e-9
    return moved, sure
