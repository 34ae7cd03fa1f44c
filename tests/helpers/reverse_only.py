"""Layers that torch cannot differentiate in forward mode, or not twice."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable


class _Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor) -> Tensor:
        ctx.save_for_backward(values)
        return values.square()

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor) -> Tensor:
        gradient: Tensor = 2 * ctx.saved_tensors[0] * cotangents[0]
        return gradient


class _SquareOnce(_Square):
    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *cotangents: Tensor) -> Tensor:
        gradient: Tensor = 2 * ctx.saved_tensors[0] * cotangents[0]
        return gradient


class Square(nn.Module):
    """The square, without a forward-mode derivative; if `once`, without a second derivative of any kind."""

    def __init__(self, once: bool = False) -> None:
        super().__init__()
        self.function = _SquareOnce if once else _Square

    def forward(self, values: Tensor) -> Tensor:
        result: Tensor = self.function.apply(values)
        return result


class PlainSquare(nn.Module):
    """The same by torch's own function."""

    def forward(self, values: Tensor) -> Tensor:
        return values.square()
