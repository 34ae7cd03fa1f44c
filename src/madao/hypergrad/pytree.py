"""Arithmetic on vectors that are tuples of tensors, one for each parameter. Nothing is written in place."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from madao.hypergrad.autodiff.torch_compat import tree_flatten, tree_unflatten

HALF = (torch.float16, torch.bfloat16)
Vector = tuple[Tensor, ...]
OptionalVector = tuple[Tensor | None, ...]
Operator = Callable[[Vector], Vector]
"""A linear map, such as v ↦ H v."""


def flatten(tree: Any, name: str) -> tuple[Vector, Callable[[Vector], Any]]:
    """Return the tensors of a tensor, list, tuple or dict, and a function that restores this form."""
    leaves, structure = tree_flatten(tree)
    if not leaves:
        raise ValueError(f"{name} is empty; it must hold at least one tensor")
    for leaf in leaves:
        if not isinstance(leaf, Tensor) or not leaf.is_floating_point():
            kind = leaf.dtype if isinstance(leaf, Tensor) else type(leaf).__name__
            raise TypeError(f"{name} must hold floating-point tensors only, got {kind}")
    return tuple(leaves), lambda vector: tree_unflatten(list(vector), structure)


def dot(first: Vector, second: Vector) -> Tensor:
    """Return ⟨first, second⟩: products in float32, or in float64 for float64; the sum in float64."""
    products = [
        torch.sum(at_least_single(a) * at_least_single(b), dtype=torch.float64)
        for a, b in zip(first, second, strict=True)
    ]
    return torch.stack(products).sum()


def norm(vector: Vector) -> Tensor:
    """Return the Euclidean length in float64, with few launches for many tensors."""
    lengths = torch._foreach_norm(list(vector), 2, torch.float64)
    length: Tensor = torch.linalg.vector_norm(torch.stack(list(lengths)))
    return length


def scaled(vector: Vector, factor: float | Tensor) -> Vector:
    """Return the vector times a factor, which may be a scalar on the device."""
    return tuple(torch._foreach_mul(list(vector), factor))


def add(first: Vector, second: Vector, factor: float = 1.0) -> Vector:
    """Return first + factor · second."""
    return tuple(torch._foreach_add(list(first), list(second), alpha=factor))


def zeros_like(vector: Vector) -> Vector:
    """Return zeros of the same shapes."""
    return tuple(torch.zeros_like(v) for v in vector)


def flat(vector: Vector) -> Tensor:
    """Return a copy of all numbers in one tensor, with half precision converted to float32."""
    return torch.cat([at_least_single(part.detach()).reshape(-1) for part in vector])


def shaped(flat: Tensor, like: Vector) -> Vector:
    """Return the numbers in the shapes and dtypes of another vector."""
    pieces = flat.split([part.numel() for part in like])
    return tuple(piece.view(part.shape).to(part.dtype) for piece, part in zip(pieces, like, strict=True))


def at_least_single(tensor: Tensor) -> Tensor:
    """Return the tensor, converted to float32 if it is half precision."""
    return tensor.float() if tensor.dtype in HALF else tensor
