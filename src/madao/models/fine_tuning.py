"""Fine-tuning: groups of parameters, frozen norms, and the statistics that published weights expect."""

from typing import Any

from torch import nn

from madao.errors import MissingPackageError
from madao.models.external import require, torchvision_names
from madao.models.layers import heads

Statistics = tuple[tuple[float, ...], tuple[float, ...]]


def parameter_groups(model: nn.Module, head_lr_scale: float) -> list[dict[str, Any]]:
    """Return the trainable parameters for an optimizer; the head is a group of its own if its scale is not 1.

    Args:
        model: The model.
        head_lr_scale: The learning rate of the head over that of the body.
    """
    trainable = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    if head_lr_scale == 1:
        return [{"params": [*trainable.values()]}]
    prefixes = tuple(f"{head}." for head in heads(model))
    head = [parameter for name, parameter in trainable.items() if name.startswith(prefixes)]
    body = [parameter for name, parameter in trainable.items() if not name.startswith(prefixes)]
    return [{"params": body}, {"params": head, "lr_scale": head_lr_scale}]


def freeze_norms(model: nn.Module) -> None:
    """Keep the statistics and weights of BatchNorm layers. Call it again after `model.train()`."""
    for module in model.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            module.eval().requires_grad_(False)


def pretrained_statistics(name: str, channels: int) -> Statistics | None:
    """Return the mean and standard deviation per channel that a model's published weights expect; None without weights.

    Args:
        name: The name of the model, as `build` takes it.
        channels: Channels of the images. For other than three, each has the mean over red, green and blue.
    """
    found = _published_statistics(name)
    if found is None or channels == 3:
        return found
    mean, std = ((sum(values) / len(values),) * channels for values in found)
    return mean, std


def _published_statistics(name: str) -> Statistics | None:
    bare = name.removeprefix("timm/")
    try:
        if bare == name and name in torchvision_names():
            weights = next(iter(require("torchvision").models.get_model_weights(name)), None)
            transform = None if weights is None else weights.transforms()
            return None if transform is None else (tuple(transform.mean), tuple(transform.std))
        timm = require("timm")
        published = timm.get_pretrained_cfg(bare) if timm.is_model(bare) else None
    except MissingPackageError:
        return None
    return None if published is None else (tuple(published.mean), tuple(published.std))
