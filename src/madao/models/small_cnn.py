"""A network for small digits that trains in seconds on a CPU."""

import torch.nn.functional as F
from torch import Tensor, nn

from madao.errors import ModelError


class SmallCNN(nn.Module):
    """A network of three convolutions, `[B, channels, H, W]` to `[B, classes]`, for images of 16 to 28 pixels a side.

    The first convolution has `width` channels, the other two twice as many. It works from 4 pixels a side.
    """

    def __init__(self, classes: int, channels: int = 1, width: int = 16) -> None:
        super().__init__()
        if width < 1:
            raise ModelError(f"the width of a small CNN must be at least 1, got {width}")
        self.conv1 = nn.Conv2d(channels, width, 3, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, 2 * width, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(2 * width)
        self.conv3 = nn.Conv2d(2 * width, 2 * width, 3, padding=1, bias=False)
        self.norm3 = nn.BatchNorm2d(2 * width)
        self.head = nn.Linear(2 * width, classes)

    def forward(self, images: Tensor) -> Tensor:
        """Return the logits."""
        features = F.max_pool2d(F.relu(self.norm1(self.conv1(images))), 2)
        features = F.max_pool2d(F.relu(self.norm2(self.conv2(features))), 2)
        features = F.relu(self.norm3(self.conv3(features)))
        logits: Tensor = self.head(features.mean((2, 3)))
        return logits
