"""Checks that a model fits the data."""

import torch
from torch import Tensor, nn

from madao.errors import ModelError, first_line


def check_head(model: nn.Module, classes: int, channels: int, image_size: int) -> None:
    """Raise a ModelError unless a model returns at least one logit per class for images of this size.

    The model sees two black images, in eval mode and without gradients. It is not changed.
    """
    logits = probe(model, channels, image_size)
    if logits.dim() != 2 or len(logits) != 2:
        raise ModelError(f"the model returns the shape {list(logits.shape)} for 2 images; expected [2, {classes}]")
    if logits.shape[1] < classes:
        counts = f"the model has {logits.shape[1]} outputs, the data {classes} classes"
        raise ModelError(f"{counts}; build it with {classes} outputs")


def probe(model: nn.Module, channels: int, image_size: int) -> Tensor:
    """Return a model's output for two black images, in eval mode and without gradients. The model is not changed."""
    like = next(model.parameters(), torch.empty(0))
    images = torch.zeros(2, channels, image_size, image_size, dtype=like.dtype, device=like.device)
    modes = {module: module.training for module in model.modules()}
    try:
        with torch.no_grad():
            logits = model.eval()(images)
    except Exception as error:  # a user's module can raise anything
        shape = f"{channels}×{image_size}×{image_size}"
        remedy = "choose a larger `data.size` or another `model.name`"
        raise ModelError(f"the model cannot take images of {shape} ({first_line(error)}); {remedy}") from error
    finally:
        for module, mode in modes.items():
            module.training = mode
    if not isinstance(logits, Tensor):
        kind = type(logits).__name__
        raise ModelError(f"the model returns a {kind}, expected a tensor of logits; choose another `model.name`")
    return logits
