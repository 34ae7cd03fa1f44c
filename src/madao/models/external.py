"""Models of torchvision and timm, which are imported only when one is asked for."""

import importlib
from types import ModuleType

from torch import nn

from madao.errors import MissingPackageError, ModelError, first_line
from madao.models.layers import set_channels
from madao.models.weights import load

# In training they return auxiliary outputs beside the logits.
AUXILIARY = ("googlenet", "inception_v3")


def require(package: str) -> ModuleType:
    """An optional package, or an error that says how to get it."""
    try:
        return importlib.import_module(package)
    except ImportError as error:
        raise MissingPackageError(
            f"the model needs {package}, which cannot be imported: pip install {package}"
        ) from error


def torchvision_names() -> list[str]:
    """What torchvision classifies images with."""
    models = require("torchvision").models
    return [name for name in models.list_models(module=models) if name not in AUXILIARY]


def timm_names() -> list[str]:
    """What timm classifies images with."""
    names: list[str] = require("timm").list_models()
    return names


def is_timm(name: str) -> bool:
    """Whether timm has a model of this name."""
    return bool(require("timm").is_model(name))


def from_torchvision(name: str, classes: int, channels: int, image_size: int, pretrained: bool = False) -> nn.Module:
    """A model of torchvision, with torchvision's default weights if `pretrained`."""
    models = require("torchvision").models
    settings: dict[str, object] = {}
    if name.startswith("vit_"):
        settings["image_size"] = image_size
    if name.startswith("maxvit_"):
        settings["input_size"] = (image_size, image_size)
    try:
        model: nn.Module = models.get_model(name, weights=None, num_classes=classes, **settings)
    except (AssertionError, ValueError) as error:
        raise _cannot_build(name, image_size, error) from error
    set_channels(model, channels)
    if pretrained:
        try:
            # A whole model, not the file: torchvision renames what has changed since the file was written.
            published: nn.Module = models.get_model(name, weights="DEFAULT")
        except (OSError, RuntimeError) as error:
            raise _cannot_fetch(name, error) from error
        load(model, published.state_dict(), f"torchvision's {name}")
    return model


def from_timm(name: str, classes: int, channels: int, image_size: int, pretrained: bool = False) -> nn.Module:
    """A model of timm, with timm's default weights if `pretrained`."""
    timm = require("timm")
    published = timm.get_pretrained_cfg(name)
    fixed = published is not None and published.fixed_input_size
    settings = {"img_size": image_size} if fixed else {}
    try:
        model: nn.Module = timm.create_model(
            name, pretrained=pretrained, num_classes=classes, in_chans=channels, **settings
        )
    except (OSError, RuntimeError) as error:
        raise (_cannot_fetch(name, error) if pretrained else _cannot_build(name, image_size, error)) from error
    except (AssertionError, TypeError, ValueError) as error:
        raise _cannot_build(name, image_size, error) from error
    return model


def _cannot_build(name: str, image_size: int, error: Exception) -> ModelError:
    reason = f"{name} cannot be built for images of {image_size}×{image_size} ({first_line(error)})"
    return ModelError(f"{reason}; choose another size or model")


def _cannot_fetch(name: str, error: Exception) -> ModelError:
    remedy = "bring the file here by other means and give its path as pretrained"
    return ModelError(f"the weights of {name} cannot be fetched ({first_line(error)}); {remedy}")
