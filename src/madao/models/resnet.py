"""torchvision's residual networks with a stem for small images."""

import re
from typing import Literal

from torch import nn

from madao.errors import ModelError
from madao.models.external import from_torchvision


def is_resnet(name: str) -> bool:
    """Return whether a name of torchvision belongs to its class ResNet, which has a choice of stem."""
    return re.match(r"(resnet|resnext|wide_resnet)\d", name) is not None


def resnet(
    name: str,
    classes: int,
    channels: int = 3,
    stem: Literal["small", "imagenet"] = "small",
    pretrained: bool = False,
) -> nn.Module:
    """Build a residual network of torchvision.

    The stem "imagenet" divides the side by four before the first block, and is the one of published weights. "small",
    as for CIFAR, keeps it: a 3×3 convolution of stride 1, no pooling.
    """
    if pretrained and stem == "small":
        raise ModelError(f"{name} has no published weights for the stem 'small'; set `model.stem=imagenet`")
    model = from_torchvision(name, classes, channels, image_size=224, pretrained=pretrained)
    if stem == "small":
        convolution = nn.Conv2d(channels, 64, 3, padding=1, bias=False)
        nn.init.kaiming_normal_(convolution.weight, mode="fan_out", nonlinearity="relu")
        model.conv1, model.maxpool = convolution, nn.Identity()
    return model
