"""Whether a model and the data go together."""

import torch
from torch import Tensor, nn

from madao.errors import ModelError, first_line


def check_head(model: nn.Module, classes: int, channels: int, image_size: int) -> None:
    """Raise a ModelError unless the model gives at least one logit per class for such images.

    It is tried on two black images, in eval mode and without gradients. Nothing about it changes.

    Args:
        model: Any module from images to logits.
        classes: Number of classes in the data.
        channels: Of the images.
        image_size: Their side.
    """
    logits = answer(model, channels, image_size)
    if logits.dim() != 2 or len(logits) != 2:
        raise ModelError(f"the model gives the shape {list(logits.shape)} for 2 images; it has to be [2, {classes}]")
    if logits.shape[1] < classes:
        counts = f"the model has {logits.shape[1]} outputs, the data {classes} classes"
        raise ModelError(f"{counts}; build it with {classes} outputs")


def answer(model: nn.Module, channels: int, image_size: int) -> Tensor:
    """What a model gives for two black images, in eval mode and without gradients. Nothing about it changes.

    Args:
        model: Any module from images to a tensor.
        channels: Of the images.
        image_size: Their side.
    """
    like = next(model.parameters(), torch.empty(0))
    images = torch.zeros(2, channels, image_size, image_size, dtype=like.dtype, device=like.device)
    modes = {module: module.training for module in model.modules()}
    try:
        with torch.no_grad():
            logits = model.eval()(images)
    except Exception as error:  # any module may come, and stumble in its own way
        shape = f"{channels}×{image_size}×{image_size}"
        remedy = "choose larger images or another model"
        raise ModelError(f"the model cannot take images of {shape} ({first_line(error)}); {remedy}") from error
    finally:
        for module, mode in modes.items():
            module.training = mode
    if not isinstance(logits, Tensor):
        raise ModelError(f"the model returns a {type(logits).__name__}, which is not supported; it has to be a tensor")
    return logits
