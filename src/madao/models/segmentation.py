"""Models that give a class to every pixel, by name."""

from torch import Tensor, nn

from madao.errors import ModelError, UnknownModelError
from madao.models.external import require
from madao.models.layers import set_channels
from madao.models.probe import answer
from madao.models.small_fcn import SmallFCN
from madao.models.weights import load_file


class _OnlyMasks(nn.Module):
    """Of torchvision's dictionary, the logits."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: Tensor) -> Tensor:
        """`[B, classes, H, W]`."""
        logits: Tensor = self.model(images)["out"]
        return logits


def known_dense() -> list[str]:
    """The names that can be built: our own, then torchvision's."""
    models = require("torchvision").models
    return ["small-fcn", *models.list_models(module=models.segmentation)]


def build_dense(
    name: str, classes: int, channels: int = 3, image_size: int = 32, pretrained: bool | str = False
) -> nn.Module:
    """Build a model and make sure that it fits the data. Its initialisation draws from torch's global state.

    Args:
        name: small-fcn, or one of torchvision's, such as fcn_resnet50 or deeplabv3_resnet50.
        classes: Of the pixels, at least 2.
        channels: Of the images.
        image_size: Side of the images.
        pretrained: Whether torchvision's backbone starts from its published weights; or the path of a state dict.
    """
    if name not in known_dense():
        raise UnknownModelError(name)
    if name == "small-fcn":
        if pretrained is True:
            raise ModelError("no weights are published for small-fcn; give the path of a state dict as pretrained")
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
    found, expected = answer(model, channels, image_size).shape, (2, classes, image_size, image_size)
    if found != expected:
        raise ModelError(f"the model gives the shape {list(found)} for 2 images; it has to be {list(expected)}")
    return model
