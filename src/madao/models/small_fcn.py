"""A network for small masks that trains in a minute on a CPU."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from madao.errors import ModelError


class SmallFCN(nn.Module):
    """A fully convolutional network, `[B, channels, H, W]` to `[B, classes, H, W]`, for even H and W.

    It has a level at full size with `width` channels, and one at half size with twice as many and dilated convolutions.
    An output depends on 31 pixels a side.
    """

    def __init__(self, classes: int, channels: int = 1, width: int = 10) -> None:
        super().__init__()
        if width < 1:
            raise ModelError(f"the width of a small FCN must be at least 1, got {width}")
        self.fine = _block(channels, width)
        self.coarse = nn.Sequential(
            _block(width, 2 * width), _block(2 * width, 2 * width, 2), _block(2 * width, 2 * width, 3)
        )
        self.merge = _block(3 * width, width)
        self.head = nn.Conv2d(width, classes, 1)

    def forward(self, images: Tensor) -> Tensor:
        """Return the logits of each pixel."""
        fine = self.fine(images)
        coarse = F.interpolate(self.coarse(F.max_pool2d(fine, 2)), size=fine.shape[2:], mode="nearest")
        logits: Tensor = self.head(self.merge(torch.cat([fine, coarse], 1)))
        return logits


def _block(channels: int, width: int, dilation: int = 1) -> nn.Sequential:
    convolution = nn.Conv2d(channels, width, 3, padding=dilation, dilation=dilation, bias=False)
    return nn.Sequential(convolution, nn.BatchNorm2d(width), nn.ReLU())
