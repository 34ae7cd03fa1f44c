"""Apply a different operation to each image of a batch.

`grouped` is the reference in plain PyTorch; the Triton kernels have to agree with it.
"""

import functools
import importlib.util
from collections.abc import Callable, Sequence
from types import ModuleType

import torch
from torch import Tensor

from madao.ops.checks import check_fill, check_fill_fits, check_images, check_strengths
from madao.ops.geometric import Fill
from madao.ops.registry import Operation


def dispatch(
    images: Tensor,
    operations: Sequence[Operation],
    choice: Tensor,
    magnitude: Tensor,
    sign: Tensor,
    applied: Tensor | None = None,
    fill: Fill = 0.0,
) -> Tensor:
    """Apply to each image the operation chosen for it: result_b = operations[choice_b](image_b, μ_b, sign_b).

    The result is a new tensor, equals augmenting one image at a time, and is differentiable in `images` and
    `magnitude`. On a GPU, forward and backward pass are two fused kernels each (`madao.ops.triton`): the host does not
    wait, but there is no second derivative.

    Args:
        images: `[B, C, H, W]`, uint8 or float in [0, 1], C of 1 or 3.
        operations: Operations that `choice` indexes.
        choice: `[B]`, integer.
        magnitude: `[B]` in [0, 1].
        sign: `[B]`, +1 or −1.
        applied: `[B]`, bool: images with False are not changed. None means all True.
        fill: Colour outside the image in [0, 1], for geometric operations.
    """
    check_images(images)
    check_strengths(magnitude, sign, images)
    check_fill_fits(check_fill(fill), images)
    if choice.shape != images.shape[:1] or choice.is_floating_point() or choice.dtype == torch.bool:
        raise ValueError(
            f"choice must be one integer per image, shape [{len(images)}], got {choice.dtype} of shape "
            f"{list(choice.shape)}"
        )
    if applied is not None and (applied.shape != images.shape[:1] or applied.dtype != torch.bool):
        raise ValueError(
            f"applied must be one bool per image, shape [{len(images)}], got {applied.dtype} of shape "
            f"{list(applied.shape)}"
        )
    return dispatch_unchecked(images, operations, choice, magnitude, sign, applied, fill)


def dispatch_unchecked(
    images: Tensor,
    operations: Sequence[Operation],
    choice: Tensor,
    magnitude: Tensor,
    sign: Tensor,
    applied: Tensor | None = None,
    fill: Fill = 0.0,
) -> Tensor:
    """Do what `dispatch` does, without checks of images, strengths and fill."""
    apply: Callable[..., Tensor] = grouped
    kernels = _kernels() if images.is_cuda else None
    if kernels is not None and kernels.supported(images, operations):
        if not (torch.is_grad_enabled() and (images.requires_grad or magnitude.requires_grad)):
            apply = kernels.fused
        elif _kernel_gradients().differentiable(images, operations):
            apply = _kernel_gradients().fused_differentiable
    return apply(images, operations, choice, magnitude, sign, applied, fill)


@functools.cache
def _kernels() -> ModuleType | None:
    return importlib.import_module("madao.ops.triton.forward") if importlib.util.find_spec("triton") else None


@functools.cache
def _kernel_gradients() -> ModuleType:
    return importlib.import_module("madao.ops.triton.backward")


def grouped(
    images: Tensor,
    operations: Sequence[Operation],
    choice: Tensor,
    magnitude: Tensor,
    sign: Tensor,
    applied: Tensor | None = None,
    fill: Fill = 0.0,
) -> Tensor:
    """Dispatch in plain PyTorch: group images by operation. On a GPU the host waits for the groups."""
    untouched = len(operations)
    if len(choice):
        low, high = (int(bound) for bound in choice.aminmax())
        if low < 0 or high >= untouched:
            raise ValueError(f"choice must lie in 0..{untouched - 1}, got {low}..{high}")
    group = choice if applied is None else torch.where(applied, choice, untouched)
    counts = torch.bincount(group, minlength=untouched + 1).tolist()
    order = group.argsort(stable=True)
    sorted_images, sorted_magnitude, sorted_sign = (field.index_select(0, order) for field in (images, magnitude, sign))
    pieces = list(torch.split(sorted_images, counts))
    strengths, sides = torch.split(sorted_magnitude, counts), torch.split(sorted_sign, counts)
    differentiable = torch.is_grad_enabled() and (images.requires_grad or magnitude.requires_grad)
    for i, operation in enumerate(operations):
        if counts[i]:
            result = operation.apply_unchecked(pieces[i], strengths[i], sides[i], fill)
            if differentiable or result.requires_grad:
                pieces[i], differentiable = result, True
            else:  # Pieces are views: writing back into them saves the memory of another batch.
                pieces[i].copy_(result)
    return (torch.cat(pieces) if differentiable else sorted_images).index_select(0, order.argsort())
