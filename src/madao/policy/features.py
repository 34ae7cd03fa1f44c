"""What a policy that depends on the image sees of it: 24 numbers, from one pass over the pixels."""

import torch
import torch.nn.functional as F
from torch import Tensor

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

_LUMA = (0.299, 0.587, 0.114)


@torch.no_grad()
def features(images: Tensor) -> Tensor:
    """Means and standard deviations of the channels, how much neighbours differ, and the brightness of 4 × 4 patches.

    Neighbours and patches are those of the luma; a patch is the mean over its pixels less that over all. Whatever
    size an image has, a copy of it at another size has nearly the same numbers, but for how much neighbours differ.

    Args:
        images: `[B, C, H, W]`, C of 1 or 3, uint8 or float in [0, 1].

    Returns:
        `[B, 24]`, at least float32, without a gradient.
    """
    values = images.float() / 255 if images.dtype == torch.uint8 else images
    values = values.to(torch.promote_types(values.dtype, torch.float32)).expand(-1, 3, -1, -1)
    mean = values.mean((2, 3))
    deviation = (values - mean[..., None, None]).square().mean((2, 3)).sqrt()
    luma = sum(weight * values[:, channel] for channel, weight in enumerate(_LUMA))
    assert isinstance(luma, Tensor)
    across, down = (_mean_change(luma, dimension) for dimension in (2, 1))
    patches = F.adaptive_avg_pool2d(luma[:, None], GRID).flatten(1) - luma.mean((1, 2))[:, None]
    return torch.cat([mean, deviation, across, down, patches], 1)


def _mean_change(luma: Tensor, dimension: int) -> Tensor:
    """The mean |difference| of neighbours, `[B, 1]`; 0 where there are none."""
    change = luma.diff(dim=dimension).abs()
    return change.sum((1, 2))[:, None] / max(change.shape[1] * change.shape[2], 1)
