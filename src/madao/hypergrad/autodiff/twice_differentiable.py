"""Functions with the values of torch's own, and with the second derivatives that torch's lack."""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from madao.hypergrad.autodiff.torch_compat import weight_norm as torch_weight_norm
from madao.hypergrad.pytree import HALF, at_least_single


def upcast(value: Any) -> Any:
    """Convert a tensor of half precision to float32. Return anything else unchanged."""
    return at_least_single(value) if isinstance(value, Tensor) else value


def _in_single_precision(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def run(input: Tensor, *arguments: Any, **keywords: Any) -> Tensor:
        if input.dtype not in HALF:
            return function(input, *arguments, **keywords)
        arguments = tuple(upcast(argument) for argument in arguments)
        keywords = {name: upcast(value) for name, value in keywords.items()}
        return function(input.float(), *arguments, **keywords).to(input.dtype)

    return run


def dropout(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    """Compute `torch.nn.functional.dropout` with a mask that does not depend on the input's memory format."""
    if not training or p == 0:
        return input
    kept = torch.empty(input.shape, dtype=input.dtype, device=input.device).bernoulli_(1 - p)
    return input * kept / (1 - p) if p < 1 else input * kept


def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """Compute `torch.nn.functional.scaled_dot_product_attention` by its definition."""
    if enable_gqa:
        key, value = (t.repeat_interleave(query.shape[-3] // t.shape[-3], -3) for t in (key, value))
    scores = query @ key.mT * (query.shape[-1] ** -0.5 if scale is None else scale)
    if is_causal:
        attn_mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
    blank = torch.zeros((), dtype=torch.bool, device=scores.device)
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        blank = ~attn_mask.any(-1, keepdim=True)  # such rows attend to nothing and return zero
        scores = scores.masked_fill(~attn_mask, -torch.inf).masked_fill(blank, 0)
    elif attn_mask is not None:
        scores = scores + attn_mask
    return dropout(scores.softmax(-1).masked_fill(blank, 0), dropout_p) @ value


def hardsigmoid(input: Tensor, inplace: bool = False) -> Tensor:
    """Compute `torch.nn.functional.hardsigmoid` by its definition."""
    return F.relu6(input + 3) / 6


def weight_norm(v: Tensor, g: Tensor, dim: int = 0) -> Tensor:
    """Return `v`, scaled so that its slices along a dimension have the norms `g`; one norm if `dim` is −1."""
    others = [i for i in range(v.dim()) if dim == -1 or i != dim]
    norms: Tensor = v.norm(2, others, keepdim=dim != -1)
    return v * (g / norms)


def normalize(input: Tensor, p: float = 2.0, dim: int = 1, eps: float = 1e-12, out: Tensor | None = None) -> Tensor:
    """Compute `torch.nn.functional.normalize`. A result that is written to `out`, in place, has no derivative."""
    if out is None:
        return F.normalize(input, p, dim, eps)
    return out.copy_(F.normalize(input.detach(), p, dim, eps))


_NORMS = (F.batch_norm, F.group_norm, F.layer_norm)
TWICE_DIFFERENTIABLE: dict[Callable[..., Any], Callable[..., Any]] = {
    F.scaled_dot_product_attention: attention,
    F.dropout: dropout,
    F.hardsigmoid: hardsigmoid,
    F.normalize: normalize,
    torch_weight_norm: weight_norm,
    **{function: _in_single_precision(function) for function in _NORMS},
}
"""The functions that replace those of torch which have no second derivative, or not the same one in every mode.

The fused kernels of attention have no second derivative. torch's dropout fills its mask in the order of the input's
memory, which forward mode may change. Its norms of half-precision inputs have forward derivatives of another dtype. The
fast paths of transformer layers are off in any case, since a mode is active. The derivative of hardsigmoid has no
derivative, and weight normalization none in forward mode. Spectral normalization in training writes the singular
vectors that it estimates to its buffers, and takes them as constants.
"""
