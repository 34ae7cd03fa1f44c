"""Every private API of torch that hypergrad uses, and the state that torch has once per process.

All of it works with torch 2.15, with which the tests run; the oldest version that `pyproject.toml` admits is 2.9.
`tests/hypergrad/autodiff/test_torch_compat.py` tests each of these APIs, and fails if torch changes one.
"""

import contextlib
import functools
import threading
import types
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn
from torch._functorch import config as functorch_config
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

__all__ = [
    "PROCESS_LOCK",
    "Replaced",
    "activation_memory_budget",
    "grad_without_graph",
    "is_in_place",
    "load_forward_mode",
    "trace",
    "tree_flatten",
    "tree_leaves",
    "tree_unflatten",
    "uncompiled",
    "weight_norm",
    "without_repeats",
]

PROCESS_LOCK = threading.RLock()
"""Held by the one thread that uses forward mode, traces, or changes the process's random state or compiler stance.

torch keeps each of these once a process, and fails or mixes up results if two threads use them at the same time.
"""


weight_norm: Callable[..., Tensor] = torch._weight_norm
"""The function `weight_norm(v, g, dim)` that both forms of torch's weight normalization call."""


class Replaced(TorchFunctionMode):
    """A mode that replaces functions of torch by others, in this thread only.

    They are replaced inside `multi_head_attention_forward` too, which calls dropout and attention.

    Args:
        replacements: From functions of torch to the functions called in their place, which are called without the mode.
    """

    def __init__(self, replacements: Mapping[Callable[..., Any], Callable[..., Any]]) -> None:
        super().__init__()
        self.replacements = replacements

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types_: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Call the replacement."""
        if func in self.replacements:
            return self.replacements[func](*args, **(kwargs or {}))
        if func is F.multi_head_attention_forward:
            with self:
                return _body(func)(*args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))


@functools.cache
def _body(function: types.FunctionType) -> Callable[..., Any]:
    """Return a copy of a function of torch that does not begin by handing itself to the mode."""
    # A function that is called by a mode runs without it, and so does everything that it calls.
    checks = ("has_torch_function", "has_torch_function_unary", "has_torch_function_variadic")
    names = {**function.__globals__, **dict.fromkeys(checks, lambda *_: False)}
    copy = types.FunctionType(function.__code__, names, function.__name__, function.__defaults__, function.__closure__)
    copy.__kwdefaults__ = function.__kwdefaults__
    return copy


class _WithoutGraph(TorchFunctionMode):
    """A mode in which `torch.autograd.grad` records no graph of the gradient while `active`."""

    active = True

    def __torch_function__(
        self, func: Callable[..., Any], types_: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if self.active and func is torch.autograd.grad:
            kwargs = kwargs | {"create_graph": False}
        return func(*args, **kwargs)


def grad_without_graph(function: Callable[..., Any], has_aux: bool = False) -> Callable[[Any], Any]:
    """Return `torch.func.grad(function, has_aux=has_aux)` that records no graph of the gradient.

    `torch.func.grad` always records one, and it takes as much memory as the graph of the function. It has no public
    switch, but its call of `torch.autograd.grad` is visible to a mode.
    """

    def gradient(argument: Any) -> Any:
        mode = _WithoutGraph()

        def inside(argument: Any) -> Any:
            mode.active = False  # gradients that the function itself takes keep their graphs
            try:
                return function(argument)
            finally:
                mode.active = True

        with mode:
            return torch.func.grad(inside, has_aux=has_aux)(argument)

    return gradient


@functools.cache
def load_forward_mode() -> None:
    """Import the part of forward mode that warns of torch's own use of `torch.jit.script`."""
    with PROCESS_LOCK, warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*torch.jit.script.*", category=Warning)
        import torch._decomp.decompositions_for_jvp  # noqa: F401


def trace(function: Callable[..., Any], arguments: tuple[Tensor, ...]) -> fx.GraphModule:
    """Return the function as a graph of tensor operations. Tensors that it closes over are taken by reference."""
    from torch.fx.experimental.proxy_tensor import make_fx  # imported here since it takes seconds

    with PROCESS_LOCK:
        graph: fx.GraphModule = make_fx(function, tracing_mode="fake", _allow_non_fake_inputs=True)(*arguments)
        return graph


def without_repeats(graph: fx.Graph) -> fx.Graph:
    """Return a graph in which equal nodes are computed once."""
    from torch._functorch.compile_utils import fx_graph_cse  # imported here since it takes seconds

    return fx_graph_cse(graph)


def is_in_place(target: Any) -> bool:
    """Return whether an operator of a graph writes to one of its arguments."""
    return bool(getattr(getattr(target, "_schema", None), "is_mutable", False))


@contextlib.contextmanager
def activation_memory_budget(part: float) -> Iterator[None]:
    """Let code compiled inside store this fraction of its activations for the backward pass, and recompute the rest."""
    with PROCESS_LOCK, functorch_config.patch(activation_memory_budget=part):
        yield


def uncompiled(model: nn.Module) -> nn.Module | None:
    """Return the module that `torch.compile` was given to make this one; None if it did not make it."""
    inside: nn.Module | None = getattr(model, "_orig_mod", None)
    return inside
