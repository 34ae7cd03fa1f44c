"""The networks of the hypergradient benchmarks."""

import torch
from torch import Tensor, nn


class Block(nn.Module):
    """A pre-activation residual block of a wide residual network (Zagoruyko & Komodakis, 2016)."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.BatchNorm2d(inputs), nn.BatchNorm2d(outputs)
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.shortcut = nn.Conv2d(inputs, outputs, 1, stride, bias=False) if inputs != outputs or stride != 1 else None

    def forward(self, images: Tensor) -> Tensor:
        """Shape `[B, inputs, H, W]` to `[B, outputs, H / stride, W / stride]`."""
        active = torch.relu(self.norm1(images))
        skip = images if self.shortcut is None else self.shortcut(active)
        result: Tensor = skip + self.conv2(torch.relu(self.norm2(self.conv1(active))))
        return result


def wide_resnet(depth: int, width: int, classes: int = 10) -> nn.Sequential:
    """Build WideResNet-depth-width for 32-pixel images: `wide_resnet(28, 2)` has 1.5 million parameters."""
    count = (depth - 4) // 6
    channels = [16, 16 * width, 32 * width, 64 * width]
    layers: list[nn.Module] = [nn.Conv2d(3, 16, 3, padding=1, bias=False)]
    for stage in range(3):
        for number in range(count):
            first = number == 0
            inputs = channels[stage] if first else channels[stage + 1]
            layers.append(Block(inputs, channels[stage + 1], 2 if first and stage else 1))
    layers += [
        nn.BatchNorm2d(channels[3]),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(channels[3], classes),
    ]
    return nn.Sequential(*layers)
