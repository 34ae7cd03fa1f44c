"""The two layers that depend on the data: the first convolution and the head."""

import torch
from torch import Tensor, nn

from madao.errors import ModelError


def first_convolution(model: nn.Module) -> tuple[str, nn.Conv2d]:
    """The layer that sees the image, with its name."""
    for name, module in model.named_modules():
        if isinstance(module, nn.Conv2d):
            return name, module
    raise ModelError(f"{type(model).__name__} has no convolution that could see the image; choose another model")


def heads(model: nn.Module) -> tuple[str, ...]:
    """The names of the layers that give the logits: those that timm declares, otherwise the last one with weights."""
    declared = getattr(model, "pretrained_cfg", {}).get("classifier")
    if declared:
        return (declared,) if isinstance(declared, str) else tuple(declared)
    return tuple(name for name, module in model.named_modules() if isinstance(module, nn.Linear | nn.Conv2d))[-1:]


def set_channels(model: nn.Module, channels: int) -> None:
    """Give an untrained model's first convolution another number of input channels."""
    _, convolution = first_convolution(model)
    if convolution.in_channels != channels:
        weight = convolution.weight.detach()
        # Drawn anew with the spread that the model's own initialisation chose.
        fresh = torch.randn(weight.shape[0], channels, *weight.shape[2:]) * weight.std()
        convolution.weight, convolution.in_channels = nn.Parameter(fresh), channels


def spread_channels(weight: Tensor, channels: int) -> Tensor:
    """Trained weights for another number of input channels: for one, their sum, so that grey images look the same."""
    return weight.sum(1, keepdim=True).repeat(1, channels, 1, 1) / channels
