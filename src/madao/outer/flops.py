"""The floating-point operations of a model."""

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from madao.hypergrad import FunctionalModel

_BACKWARD = 3
"""Operations of a forward and a backward pass over those of the forward pass."""


def pass_flops(model: nn.Module, shape: tuple[int, ...]) -> float:
    """Return the operations of a forward and backward pass of one image, without changing the model.

    Args:
        model: Maps images to outputs.
        shape: The shape of an image at the input of the model, `[C, H, W]`.
    """
    pure = FunctionalModel(model, "eval")
    params = pure.params
    first = next(iter(params.values()))
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        pure(params, torch.zeros((1, *shape), dtype=first.dtype, device=first.device))
    return float(max(_BACKWARD * counter.get_total_flops(), 1))
