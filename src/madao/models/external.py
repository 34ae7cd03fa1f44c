"""Models of torchvision and timm, imported only on demand."""

import importlib
from types import ModuleType

from torch import nn

from madao.errors import MissingPackageError, ModelError, first_line
from madao.models.layers import set_channels
from madao.models.weights import load

# In training, these return auxiliary outputs besides the logits.
AUXILIARY = ("googlenet", "inception_v3")


def require(package: str) -> ModuleType:
    """Import an optional package, or raise a MissingPackageError with the command that installs it."""
    try:
        return importlib.import_module(package)
    except ImportError as error:
        raise MissingPackageError(
            f"the model needs {package}, which cannot be imported: pip install {package}"
        ) from error


def torchvision_names() -> list[str]:
    """Return the names of torchvision's classification models."""
    models = require("torchvision").models
    return [name for name in models.list_models(module=models) if name not in AUXILIARY]


def timm_names() -> list[str]:
    """Return the names of timm's models."""
    names: list[str] = require("timm").list_models()
    return names


def from_torchvision(name: str, classes: int, channels: int, image_size: int, pretrained: bool = False) -> nn.Module:
    """Build a model of torchvision, with its default weights if `pretrained`."""
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
            # Not from the file directly: torchvision renames weights that have changed since it was written.
            published: nn.Module = models.get_model(name, weights="DEFAULT")
        except (OSError, RuntimeError) as error:
            raise _cannot_fetch(name, error) from error
        load(model, published.state_dict(), f"torchvision's {name}")
    return model


def from_timm(name: str, classes: int, channels: int, image_size: int, pretrained: bool = False) -> nn.Module:
    """Build a model of timm, with its default weights if `pretrained`."""
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
    return ModelError(f"{reason}; choose another `data.size` or `model.name`")


def _cannot_fetch(name: str, error: Exception) -> ModelError:
    remedy = "copy the file here and set `model.pretrained` to its path"
    return ModelError(f"the weights of {name} cannot be downloaded ({first_line(error)}); {remedy}")
