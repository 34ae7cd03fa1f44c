"""Segmentation models by name."""

from torch import Tensor, nn

from madao.errors import ModelError, UnknownModelError
from madao.models.external import require
from madao.models.layers import set_channels
from madao.models.probe import probe
from madao.models.small_fcn import SmallFCN
from madao.models.weights import load_file


class _OnlyMasks(nn.Module):
    """A segmentation model of torchvision that returns only the logits."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: Tensor) -> Tensor:
        """Return the logits, `[B, classes, H, W]`."""
        logits: Tensor = self.model(images)["out"]
        return logits


def known_dense() -> list[str]:
    """Return the names that `build_dense` knows: madao's own, then torchvision's."""
    models = require("torchvision").models
    return ["small-fcn", *models.list_models(module=models.segmentation)]


def build_dense(
    name: str, classes: int, channels: int = 3, image_size: int = 32, pretrained: bool | str = False
) -> nn.Module:
    """Build a segmentation model, `[B, channels, H, W]` to `[B, classes, H, W]`, and check that it fits the data.

    Its initialisation draws from torch's global random state. Names are small-fcn and those of torchvision, such as
    fcn_resnet50. Weights are those of torchvision's backbone if `pretrained`, or come from the path of a state dict.
    """
    if name not in known_dense():
        raise UnknownModelError(name)
    if name == "small-fcn":
        if pretrained is True:
            raise ModelError("small-fcn has no published weights; set `model.pretrained` to the path of a state dict")
        model: nn.Module = SmallFCN(classes, channels)
    else:
        backbone = "DEFAULT" if pretrained is True else None
        inside = require("torchvision").models.get_model(
            name, weights=None, weights_backbone=backbone, num_classes=classes
        )
        set_channels(inside, channels)
        model = _OnlyMasks(inside)
    if isinstance(pretrained, str):
        load_file(model, pretrained)
    found, expected = probe(model, channels, image_size).shape, (2, classes, image_size, image_size)
    if found != expected:
        raise ModelError(f"the model returns the shape {list(found)} for 2 images; expected {list(expected)}")
    return model
