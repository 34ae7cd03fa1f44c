"""Wide residual networks (Zagoruyko & Komodakis, 2016)."""

import torch.nn.functional as F
from torch import Tensor, nn

from madao.errors import ModelError


class WideResNet(nn.Module):
    """WRN-depth-width for small images of at least 8 pixels a side, `[B, channels, H, W]` to `[B, classes]`.

    The longest path has `depth` = 6n + 4 convolutions. `width` is a factor of the 16, 32 and 64 channels of the groups.
    """

    def __init__(self, depth: int, width: int, classes: int, channels: int = 3, dropout: float = 0.0) -> None:
        super().__init__()
        if depth < 10 or (depth - 4) % 6:
            raise ModelError(f"the depth of a wide resnet must be 6n + 4 (10, 16, 22, 28, 34, 40, ...), got {depth}")
        if width < 1:
            raise ModelError(f"the width of a wide resnet must be at least 1, got {width}")
        self.stem = nn.Conv2d(channels, 16, 3, padding=1, bias=False)
        blocks, inputs = [], 16
        for outputs, stride in ((16 * width, 1), (32 * width, 2), (64 * width, 2)):
            for index in range((depth - 4) // 6):
                blocks.append(Block(inputs, outputs, stride if index == 0 else 1, dropout))
                inputs = outputs
        self.blocks = nn.Sequential(*blocks)
        self.norm = nn.BatchNorm2d(inputs)
        self.head = nn.Linear(inputs, classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
        nn.init.zeros_(self.head.bias)

    def forward(self, images: Tensor) -> Tensor:
        """Return the logits."""
        features: Tensor = F.relu(self.norm(self.blocks(self.stem(images))))
        logits: Tensor = self.head(features.mean((2, 3)))
        return logits


class Block(nn.Module):
    """A residual block: twice norm, ReLU and convolution, with a shortcut."""

    def __init__(self, inputs: int, outputs: int, stride: int, dropout: float) -> None:
        super().__init__()
        self.norm1 = nn.BatchNorm2d(inputs)
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(outputs)
        self.dropout = nn.Dropout(dropout)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        changes = inputs != outputs or stride != 1
        self.shortcut = nn.Conv2d(inputs, outputs, 1, stride, bias=False) if changes else None

    def forward(self, features: Tensor) -> Tensor:
        """Return the output of the block."""
        active = F.relu(self.norm1(features))
        # As in the authors' code, a convolution takes the activated input, and an identity the raw one.
        shortcut = features if self.shortcut is None else self.shortcut(active)
        residual: Tensor = self.conv2(self.dropout(F.relu(self.norm2(self.conv1(active)))))
        return residual + shortcut
