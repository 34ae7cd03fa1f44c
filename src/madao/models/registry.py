"""Models by name."""

import re
from typing import Literal

from torch import nn

from madao.errors import MissingPackageError, ModelError, UnknownModelError
from madao.models.external import AUXILIARY, from_timm, from_torchvision, require, timm_names, torchvision_names
from madao.models.probe import check_head
from madao.models.resnet import is_resnet, resnet
from madao.models.small_cnn import SmallCNN
from madao.models.weights import load_file
from madao.models.wide_resnet import WideResNet

Stem = Literal["auto", "small", "imagenet"]

OWN = ("small-cnn", "wrn-16-4", "wrn-28-2", "wrn-28-10", "wrn-40-2")


def build(
    name: str,
    classes: int,
    channels: int = 3,
    image_size: int = 32,
    pretrained: bool | str = False,
    stem: Stem = "auto",
) -> nn.Module:
    """Build a classification model and check that it fits the data.

    Its initialisation draws from torch's global random state.

    Args:
        name: "small-cnn", "wrn-DEPTH-WIDTH", a name of torchvision, or one of timm, with or without "timm/".
        classes: Number of outputs, at least 2.
        channels: Channels of the images.
        image_size: Side of the images in pixels.
        pretrained: Whether to load the library's default weights with a new head; or the path of a state dict, whose
            head may be for other classes.
        stem: First layers of torchvision's resnets, see `resnet`. "auto" is "small" for sides of up to 64 pixels.

    Example:
        >>> model = build("resnet18", classes=10, image_size=32)
    """
    for argument, value, least in (("classes", classes, 2), ("channels", channels, 1), ("image_size", image_size, 1)):
        if value < least:
            raise ModelError(f"{argument} must be at least {least}, got {value}")
    if stem not in ("auto", "small", "imagenet"):
        raise ModelError(f"stem must be auto, small or imagenet, got {stem!r}")
    model = _construct(name, classes, channels, image_size, pretrained is True, stem)
    if isinstance(pretrained, str):
        load_file(model, pretrained)
    check_head(model, classes, channels, image_size)
    return model


def known() -> list[str]:
    """Return the names that `build` knows: madao's own (a few of the wide resnets), then torchvision's and timm's.

    A name that torchvision and timm share means torchvision's model; timm's has the prefix "timm/".
    """
    names = [*OWN]
    for library in (torchvision_names, timm_names):
        try:
            more = library()
        except MissingPackageError:
            continue
        taken = {*names, *AUXILIARY}
        names += [f"timm/{name}" if name in taken else name for name in more]
    return names


def _construct(name: str, classes: int, channels: int, image_size: int, pretrained: bool, stem: Stem) -> nn.Module:
    """Build a model without a weights file and without the check."""
    wide = re.fullmatch(r"wrn-(\d+)-(\d+)", name)
    own = wide is not None or name == "small-cnn"
    if not own and is_resnet(name) and name in torchvision_names():
        chosen = stem if stem != "auto" else "small" if image_size <= 64 else "imagenet"
        return resnet(name, classes, channels, chosen, pretrained)
    if stem != "auto":
        raise ModelError(f"only torchvision's resnets have a choice of stem, not {name}; set `model.stem=auto`")
    if own and pretrained:
        raise ModelError(f"{name} has no published weights; set `model.pretrained` to the path of a state dict")
    if wide is not None:
        return WideResNet(int(wide[1]), int(wide[2]), classes, channels)
    if own:
        return SmallCNN(classes, channels)
    return _from_library(name, classes, channels, image_size, pretrained)


def _from_library(name: str, classes: int, channels: int, image_size: int, pretrained: bool) -> nn.Module:
    bare = name.removeprefix("timm/")
    if name in AUXILIARY:
        raise ModelError(f"{name} is not supported: in training it returns more than logits; try `model.name=resnet50`")
    if bare == name and name in torchvision_names():
        return from_torchvision(name, classes, channels, image_size, pretrained)
    try:
        if require("timm").is_model(bare):
            return from_timm(bare, classes, channels, image_size, pretrained)
    except MissingPackageError as error:
        if bare != name:
            raise
        raise UnknownModelError(name, " (timm is not installed: pip install timm)") from error
    raise UnknownModelError(name)
