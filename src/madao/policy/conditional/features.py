"""What a policy that depends on the image sees of it: 24 numbers, whatever size it has."""

import functools

import torch
import torch.nn.functional as F
from torch import Tensor

THUMB = 16
"""Side of the thumbnail in which neighbours are compared."""
GRID = 4
"""Patches a side."""

NAMES = (
    *(f"mean of {channel}" for channel in ("red", "green", "blue")),
    *(f"deviation of {channel}" for channel in ("red", "green", "blue")),
    "change from left to right",
    "change from top to bottom",
    *(f"patch {row + 1}, {column + 1}" for row in range(GRID) for column in range(GRID)),
)
"""What each number is. A grey image has three equal channels."""

KINDS = (3, 3, 2, GRID * GRID)
"""How many numbers there are of each kind: means, deviations, changes and patches."""
CENTRES = (0.45, 0.2, 0.05, 0.0)
SCALES = (0.2, 0.1, 0.03, 0.1)
"""What photographs have of each kind, and how far they spread, roughly."""

_LUMA = (0.299, 0.587, 0.114)


def of_kinds(values: tuple[float, ...]) -> Tensor:
    """A number for each kind, repeated for every feature of it, `[24]`."""
    return torch.tensor(values).repeat_interleave(torch.tensor(KINDS))


@torch.no_grad()
def features(images: Tensor) -> Tensor:
    """Means and standard deviations of the channels, how much neighbours differ, and the brightness of 4 × 4 patches.

    Neighbours are those in a thumbnail of the luma, 16 × 16 means over its areas, so that an image has nearly the
    same numbers at every size; a patch is the mean of its part of the thumbnail less that of all.

    Args:
        images: `[B, C, H, W]`, C of 1 or 3, uint8 or float in [0, 1].

    Returns:
        `[B, 24]`, at least float32, without a gradient.
    """
    kind = torch.promote_types(images.dtype, torch.float32)
    if not len(images):
        return images.new_zeros(0, len(NAMES), dtype=kind)
    values = images.to(kind) / 255 if images.dtype == torch.uint8 else images.to(kind)
    mean = values.mean((2, 3))
    # By a norm: several times as fast as torch's own deviation.
    size = torch.linalg.vector_norm(values - mean[..., None, None], dim=(2, 3))
    deviation = size / (images.shape[2] * images.shape[3]) ** 0.5
    rows, columns = (_areas(side, images.device, kind) for side in images.shape[2:])
    with torch.autocast(images.device.type, enabled=False):  # in which these would be other numbers
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
    """How much each pixel of a side counts in each of the thumbnail's, `[16, side]`, as in Pillow's resize with BOX.

    Equally, where its centre lies within the area; where no centre does, the pixel about the area's centre.
    """
    with torch.inference_mode(False):  # whoever asks first
        wide = side / THUMB
        centres = (torch.arange(THUMB, dtype=torch.float64)[:, None] + 0.5) * wide
        away = (torch.arange(side, dtype=torch.float64) + 0.5 - centres) / max(wide, 1.0)
        within = ((away > -0.5) & (away <= 0.5)).double()
        return (within / within.sum(1, keepdim=True)).to(device, kind)
