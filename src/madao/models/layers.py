"""The two layers that depend on the data: first convolution and head."""

import torch
from torch import Tensor, nn

from madao.errors import ModelError


def first_convolution(model: nn.Module) -> tuple[str, nn.Conv2d]:
    """Return the name and module of the first convolution."""
    for name, module in model.named_modules():
        if isinstance(module, nn.Conv2d):
            return name, module
    raise ModelError(f"{type(model).__name__} has no convolution; choose another model")


def heads(model: nn.Module) -> tuple[str, ...]:
    """Return the names of the layers that compute the logits: as timm declares, or else the last one with weights."""
    declared = getattr(model, "pretrained_cfg", {}).get("classifier")
    if declared:
        return (declared,) if isinstance(declared, str) else tuple(declared)
    return tuple(name for name, module in model.named_modules() if isinstance(module, nn.Linear | nn.Conv2d))[-1:]


def set_channels(model: nn.Module, channels: int) -> None:
    """Change the number of input channels of an untrained model."""
    _, convolution = first_convolution(model)
    if convolution.in_channels != channels:
        weight = convolution.weight.detach()
        # New weights with the standard deviation of the model's own initialisation.
        fresh = torch.randn(weight.shape[0], channels, *weight.shape[2:]) * weight.std()
        convolution.weight, convolution.in_channels = nn.Parameter(fresh), channels


def spread_channels(weight: Tensor, channels: int) -> Tensor:
    """Adapt trained weights to another number of input channels.

    Each new channel gets the sum of the old ones divided by `channels`, so that grey images give unchanged outputs.
    """
    return weight.sum(1, keepdim=True).repeat(1, channels, 1, 1) / channels
