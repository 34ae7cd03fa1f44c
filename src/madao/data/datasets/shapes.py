"""Drawn bars and discs on a textured ground, with their masks. Nothing is downloaded."""

import torch
import torch.nn.functional as F
from torch import Tensor

from madao.data.dataset import Dataset, DatasetRequest
from madao.data.datasets.synthetic_shift import SHIFTS, plant, plant_masks
from madao.data.in_memory_images import InMemoryImages
from madao.errors import DataError

CLASSES = ("ground", "level bar", "upright bar", "disc")
_SIDE = 24
_OBJECTS = 2


def shapes(request: DatasetRequest) -> Dataset:
    """Draw 600 training, 400 validation and 400 test images: grey, 24 × 24 pixels, with two shapes each.

    Level and upright bars are different classes. `request.shift` moves only the validation and test images with their
    masks, so that the best operation is known beforehand.
    """
    if request.shift not in SHIFTS:
        raise DataError(f"`data.shift` must be one of {', '.join(SHIFTS)}, got {request.shift!r}")
    generator = torch.Generator().manual_seed(0)

    def drawn(count: int, shift: str, seed: int) -> InMemoryImages:
        images, masks = _draw(count, generator)
        labels = torch.zeros(count, dtype=torch.int64)
        moved = InMemoryImages(plant(images, labels, shift, seed), labels, plant_masks(masks, shift, seed))
        return moved.resized(request.side)

    return Dataset(
        name="shapes",
        classes=CLASSES,
        train=drawn(600, "none", 0),
        validation=drawn(400, request.shift, 1),
        test=drawn(400, request.shift, 2),
        flip=False,
    )


def _draw(count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Draw images, uint8 `[N, 1, H, W]`, and their masks, uint8 `[N, H, W]`."""

    def uniform(low: float, high: float, *shape: int) -> Tensor:
        return low + (high - low) * torch.rand(count, *shape, generator=generator)

    # Coarse and fine grain.
    coarse = F.interpolate(uniform(0.1, 0.5, 1, 5, 5), size=_SIDE, mode="bicubic", align_corners=False)
    images = coarse + uniform(-0.08, 0.08, 1, _SIDE, _SIDE)
    masks = torch.zeros(count, _SIDE, _SIDE, dtype=torch.uint8)
    place = torch.arange(_SIDE) + 0.5
    for _ in range(_OBJECTS):
        kind = torch.randint(1, len(CLASSES), (count, 1, 1), generator=generator)
        y, x = ((place - uniform(6, _SIDE - 6, 1)).abs() for _ in range(2))
        y, x = y[:, :, None], x[:, None, :]
        long, wide = uniform(5.5, 7.5, 1, 1), uniform(1.5, 2.2, 1, 1)
        level, upright = (y < wide) & (x < long), (y < long) & (x < wide)
        disc = y**2 + x**2 < uniform(3, 4.2, 1, 1) ** 2
        inside = torch.where(kind == 1, level, torch.where(kind == 2, upright, disc))
        masks = torch.where(inside, kind.to(torch.uint8), masks)
        ink = uniform(0.6, 0.95, 1, 1, 1) + uniform(-0.1, 0.1, 1, _SIDE, _SIDE)
        images = torch.where(inside[:, None], ink, images)
    return (images.clamp(0, 1) * 255).round().to(torch.uint8), masks
