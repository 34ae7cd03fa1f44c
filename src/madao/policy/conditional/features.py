"""The 24 features of an image that an `ImagePolicy` reads, nearly independent of the image's size."""

import functools

import torch
import torch.nn.functional as F
from torch import Tensor

THUMB = 16
"""Side of the thumbnail in which neighbours are compared, in pixels."""
GRID = 4
"""Patches per side."""

NAMES = (
    *(f"mean of {channel}" for channel in ("red", "green", "blue")),
    *(f"deviation of {channel}" for channel in ("red", "green", "blue")),
    "change from left to right",
    "change from top to bottom",
    *(f"patch {row + 1}, {column + 1}" for row in range(GRID) for column in range(GRID)),
)
"""Names of the features. A grey image has three equal channels."""

KINDS = (3, 3, 2, GRID * GRID)
"""Number of features of each kind: means, deviations, changes and patches."""
CENTRES = (0.45, 0.2, 0.05, 0.0)
SCALES = (0.2, 0.1, 0.03, 0.1)
"""Approximate mean and standard deviation of each kind over photographs."""

_LUMA = (0.299, 0.587, 0.114)


def of_kinds(values: tuple[float, ...]) -> Tensor:
    """Repeat the value of each kind for all its features, `[24]`."""
    return torch.tensor(values).repeat_interleave(torch.tensor(KINDS))


@torch.no_grad()
def features(images: Tensor) -> Tensor:
    """Return each image's features, `[B, 24]`, at least float32, without a gradient.

    They are means and deviations of the channels, how much neighbours differ, and the brightness of 4 × 4 patches.
    Neighbours are pixels of a thumbnail of the luma, 16 × 16 means over areas, so the features hardly change with the
    image's size. The brightness of a patch is its mean in the thumbnail minus the mean of the whole.
    """
    kind = torch.promote_types(images.dtype, torch.float32)
    if not len(images):
        return images.new_zeros(0, len(NAMES), dtype=kind)
    values = images.to(kind) / 255 if images.dtype == torch.uint8 else images.to(kind)
    mean = values.mean((2, 3))
    # A norm is several times as fast as torch.std.
    size = torch.linalg.vector_norm(values - mean[..., None, None], dim=(2, 3))
    deviation = size / (images.shape[2] * images.shape[3]) ** 0.5
    rows, columns = (_areas(side, images.device, kind) for side in images.shape[2:])
    with torch.autocast(images.device.type, enabled=False):  # its precision would change the features
        thumbs = rows @ values @ columns.T
    if images.shape[1] == 3:
        red, green, blue = (weight * thumbs[:, channel] for channel, weight in enumerate(_LUMA))
        luma = red + green + blue
    else:
        luma = thumbs[:, 0]
    changes = [luma.diff(dim=dimension).abs().mean((1, 2)) for dimension in (2, 1)]
    patches = F.avg_pool2d(luma[:, None], THUMB // GRID).flatten(1)
    colours = [statistic.expand(-1, 3) for statistic in (mean, deviation)]
    return torch.cat([*colours, torch.stack(changes, 1), patches - patches.mean(1, keepdim=True)], 1)


@functools.lru_cache(maxsize=64)
def _areas(side: int, device: torch.device, kind: torch.dtype) -> Tensor:
    """Return the weight of each pixel of a side in each pixel of the thumbnail, `[16, side]`, as Pillow's BOX has them.

    Pixels with their centre within the area count equally. If there is none, the pixel at the centre counts alone.
    """
    with torch.inference_mode(False):  # a later caller may need gradients through it
        wide = side / THUMB
        centres = (torch.arange(THUMB, dtype=torch.float64)[:, None] + 0.5) * wide
        away = (torch.arange(side, dtype=torch.float64) + 0.5 - centres) / max(wide, 1.0)
        within = ((away > -0.5) & (away <= 0.5)).double()
        return (within / within.sum(1, keepdim=True)).to(device, kind)
