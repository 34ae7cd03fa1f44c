"""Pictures in pages: tensors as PIL images and data URLs, and a sample picture."""

import base64
import io
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from PIL import Image

_LARGEST = 112
"""Largest side of a picture in a page, in pixels. Larger ones are scaled down; the page enlarges smaller ones."""
_LOSSLESS = 48
"""Largest side of pictures in PNG. Larger ones are JPEG, a tenth of the size."""


def to_pil(image: Tensor) -> "Image.Image":
    """Return a uint8 image `[C, H, W]` of 1 or 3 channels as a PIL image."""
    from PIL import Image

    array = image.permute(1, 2, 0).numpy()
    return Image.fromarray(array[..., 0] if array.shape[2] == 1 else array)


def data_url(image: Tensor) -> str:
    """Encode a uint8 image `[C, H, W]` as a data URL."""
    from PIL import Image

    picture = to_pil(image)
    if max(picture.size) > _LARGEST:
        picture.thumbnail((_LARGEST, _LARGEST), Image.Resampling.LANCZOS)
    file = io.BytesIO()
    lossless = is_pixel_art(picture.size)
    picture.save(file, "PNG" if lossless else "JPEG", **({} if lossless else {"quality": 82}))
    kind = "png" if lossless else "jpeg"
    return f"data:image/{kind};base64,{base64.b64encode(file.getvalue()).decode()}"


def is_pixel_art(size: Sequence[int]) -> bool:
    """Return whether an image of this height and width is so small that a page should show its pixels."""
    return max(size) <= _LOSSLESS


def sample_picture(side: int) -> Tensor:
    """Draw a landscape, uint8 `[3, side, side]`, on which every operation can be seen: colours, edges, gradients."""
    y, x = torch.meshgrid(torch.linspace(0, 1, side), torch.linspace(0, 1, side), indexing="ij")

    def colour(red: float, green: float, blue: float) -> Tensor:
        return torch.tensor([red, green, blue]).reshape(3, 1, 1)

    picture = torch.lerp(colour(0.25, 0.5, 0.85), colour(0.95, 0.8, 0.6), (y / 0.65).clamp(max=1)[None])
    picture = torch.where((x - 0.76) ** 2 + (y - 0.22) ** 2 < 0.011, colour(1.0, 0.9, 0.35), picture)
    picture = torch.where(y > 0.42 + 0.9 * (x - 0.3).abs(), colour(0.42, 0.4, 0.5), picture)
    meadow = y > 0.68 + 0.05 * torch.sin(7 * x)
    picture = torch.where(meadow, torch.lerp(colour(0.35, 0.65, 0.25), colour(0.1, 0.35, 0.15), y[None]), picture)
    house = ((x - 0.66).abs() < 0.14) & ((y - 0.71).abs() < 0.11)
    roof = (y > 0.46) & (y < 0.6) & ((x - 0.66).abs() < (y - 0.46) * 1.3)
    door = ((x - 0.7).abs() < 0.035) & (y > 0.7) & (y < 0.82)
    for shape, paint in (
        (house, colour(0.93, 0.88, 0.78)),
        (roof, colour(0.75, 0.2, 0.15)),
        (door, colour(0.3, 0.2, 0.12)),
    ):
        picture = torch.where(shape, paint, picture)
    return (255 * picture).round().to(torch.uint8)
