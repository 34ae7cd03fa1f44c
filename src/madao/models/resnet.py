"""Residual networks of torchvision, with a stem for small images."""

import re
from typing import Literal

from torch import nn

from madao.errors import ModelError
from madao.models.external import from_torchvision


def is_resnet(name: str) -> bool:
    """Whether torchvision's name is that of its class ResNet, whose stem can be chosen."""
    return re.match(r"(resnet|resnext|wide_resnet)\d", name) is not None


def resnet(
    name: str,
    classes: int,
    channels: int = 3,
    stem: Literal["small", "imagenet"] = "small",
    pretrained: bool = False,
) -> nn.Module:
    """A residual network of torchvision.

    Args:
        name: Torchvision's name, such as resnet18.
        classes: Number of outputs.
        channels: Of the images.
        stem: "imagenet" quarters the side before the first block; "small", as for CIFAR, keeps it: a 3×3 convolution
            of stride 1, no pooling.
        pretrained: Whether torchvision's default weights are loaded. For the stem "imagenet".
    """
    if pretrained and stem == "small":
        raise ModelError(f"no weights are published for {name} with the stem 'small'; use the stem 'imagenet'")
    model = from_torchvision(name, classes, channels, image_size=224, pretrained=pretrained)
    if stem == "small":
        convolution = nn.Conv2d(channels, 64, 3, padding=1, bias=False)
        nn.init.kaiming_normal_(convolution.weight, mode="fan_out", nonlinearity="relu")
        model.conv1, model.maxpool = convolution, nn.Identity()
    return model
