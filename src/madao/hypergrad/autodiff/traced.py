"""Second derivatives traced once into flat graphs, which can be compiled and recorded as CUDA graphs.

A loss is traced at its first use. Later calls run its tensor operations, without the Python code around them. Tensors
that the loss closes over are taken by reference: write new data into them, do not replace them.

Three steps make the graphs fast. Products are *linearised*: the part that does not depend on the vector runs once for
all products. Convolutions are *merged*: the derivative of w ∗ x along (ẇ, ẋ), which is ẇ ∗ x + w ∗ ẋ, is one
convolution of the stacked channels [ẋ, x] with [w, ẇ]. The gradients of a convolution are merged in the same way.
Finally, torch.compile fuses the remaining operations.
"""

import contextlib
import dataclasses
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, fx

from madao.hypergrad.autodiff import norms
from madao.hypergrad.autodiff.fuse_convs import merge_convolutions
from madao.hypergrad.autodiff.linearise import linearised
from madao.hypergrad.autodiff.products import PureLoss, SecondOrder, gauss_newton_product, scatter_grads, wanted
from madao.hypergrad.autodiff.torch_compat import (
    Replaced,
    activation_memory_budget,
    load_forward_mode,
    trace,
    without_repeats,
)
from madao.hypergrad.problem import SplitLoss, as_leaves, detached, mean
from madao.hypergrad.pytree import Operator, OptionalVector, Vector

_MEMORY_BUDGET = 0.4
"""The part of the activations that the backward pass of a directional derivative keeps. It recomputes the others."""


_OPTIONS: dict[str, Any] = {"force_layout_optimization": True}
"""Force the channels-last layout. torch.compile does not choose it for merged convolutions, whose input is twice as
large as their output."""


_NORMS = ("_batch_norm", "_layer_norm", "_group_norm", "_rms_norm")
"""Parts of the names of torch's own norms. A graph in which `norms.py` replaces them contains none."""


_DEFINITIONS: dict[Callable[..., Any], Callable[..., Any]] = {
    F.batch_norm: norms.batch_norm,
    F.layer_norm: norms.layer_norm,
    F.rms_norm: norms.rms_norm,
    F.group_norm: norms.group_norm,
    F.instance_norm: norms.instance_norm,
}
"""Norms by definition. torch's own have forward-mode formulas whose backward pass is wrong."""


class UntraceableError(RuntimeError):
    """A loss that cannot be traced, or whose graph would compute something else."""


@dataclasses.dataclass(frozen=True)
class Traced(SecondOrder):
    """Exact second derivatives, fast for losses that are differentiated many times.

    The graphs of a loss are cached by equality of the function: pass the same function at every call.

    Gradients are those of the traced operations. Losses that stop gradients (`detach`, `no_grad`) or define a custom
    backward pass get wrong derivatives, since tracing does not see either.

    Attributes:
        compile: Whether torch.compile compiles the graphs. It takes a minute at first use and makes them several times
            as fast on a GPU.
    """

    compile: bool = False
    _made: dict[Any, Any] = dataclasses.field(default_factory=dict, init=False, repr=False, compare=False)

    def products(self, loss: PureLoss, params: Vector, inputs: Vector) -> Operator:
        """Return v ↦ H v, the derivative of ∇θ f along v, linearised."""
        return self._linear("products", _product(loss, len(params)), loss, params, inputs)

    def gauss_newton(self, loss: SplitLoss, params: Vector, inputs: Vector) -> Operator:
        """Return v ↦ Jᵀ S J v, linearised."""
        return self._linear("gauss-newton", _gauss_newton(loss, len(params)), loss, params, inputs)

    def _linear(
        self, kind: str, function: Callable[..., Vector], loss: Any, params: Vector, inputs: Vector
    ) -> Operator:
        """Return v ↦ function(θ, v, inputs) for a function that is linear in v."""
        point, fixed = detached(params), detached(inputs)
        residuals: Vector | None = None

        def product(direction: Vector) -> Vector:
            nonlocal residuals
            with torch.no_grad():
                first, then = self._once(kind, loss, (*point, *fixed), lambda: self._linearised(function, point, fixed))
                if residuals is None:
                    residuals = first(*point, *fixed)
                result: Vector = then(*residuals, *_laid_out_as(point, direction))
                return result

        return product

    def directional(
        self, loss: PureLoss, params: Vector, direction: Vector, inputs: Vector
    ) -> tuple[Tensor, OptionalVector]:
        """Return D_q ℓ by forward mode, and its gradient in the inputs by reverse over forward mode."""
        leaves = as_leaves(inputs)
        graph, arguments = self._along("directional", _tangent_of, loss, params, direction, inputs)
        budget = activation_memory_budget(_MEMORY_BUDGET) if self.compile else contextlib.nullcontext()
        with torch.enable_grad(), budget:
            slope: Tensor = graph(*arguments, *leaves)
        if not slope.requires_grad:
            return slope, scatter_grads([torch.zeros_like(leaf) for leaf in wanted(leaves)], leaves)
        gradient = torch.autograd.grad(mean(slope), wanted(leaves), materialize_grads=True)
        return slope.detach(), scatter_grads(gradient, leaves)

    def slopes(self, loss: PureLoss, params: Vector, direction: Vector, inputs: Vector) -> tuple[Tensor, Tensor]:
        """Return ℓ and D_q ℓ from one forward pass that stores nothing."""
        graph, arguments = self._along("slopes", _value_and_tangent_of, loss, params, direction, inputs)
        with torch.no_grad():
            value, slope = graph(*arguments, *detached(inputs))
        return value, slope

    def losses(self, loss: PureLoss, params: Vector, inputs: Vector) -> tuple[Tensor, OptionalVector]:
        """Return ℓ, and the gradient of its mean by reverse mode."""
        everything = detached((*params, *inputs))
        graph = self._once("losses", loss, everything, lambda: self._graph(_every(loss, len(params)), everything))
        return super().losses(lambda p, i: graph(*p, *i), params, inputs)

    def gradient(self, loss: PureLoss, params: Vector, inputs: Vector) -> tuple[Tensor, OptionalVector]:
        """Return the mean loss and its gradient by reverse mode."""
        point = detached((*params, *inputs))
        graph = self._once("gradient", loss, point, lambda: self._graph(_value(loss, len(params)), point))
        return super().gradient(lambda p, i: graph(*p, *i), params, inputs)

    def _along(
        self,
        kind: str,
        of: Callable[[PureLoss, int], Callable[..., Any]],
        loss: PureLoss,
        params: Vector,
        direction: Vector,
        inputs: Vector,
    ) -> tuple[Callable[..., Any], Vector]:
        """Return the graph of a function of (θ, q, inputs), and its arguments θ and q."""
        arguments = (*detached(params), *_laid_out_as(params, direction))
        everything = (*arguments, *detached(inputs))
        graph = self._once(kind, loss, everything, lambda: self._graph(of(loss, len(params)), everything))
        return graph, arguments

    def _once(self, kind: str, loss: Any, arguments: Vector, make: Callable[[], Any]) -> Any:
        key = (kind, loss, *((tensor.shape, tensor.dtype) for tensor in arguments))
        if key not in self._made:
            self._made[key] = make()
        return self._made[key]

    def _graph(self, function: Callable[..., Any], arguments: Vector) -> Callable[..., Any]:
        graph = traced(function, arguments)
        for node in graph.graph.nodes:
            if any(name in str(node.target) for name in _NORMS):
                raise UntraceableError(
                    f"the loss calls {node.target}, whose derivative torch has wrong here; use torch.nn.functional's"
                )
        return self._finished(merge_convolutions(graph))

    def _linearised(
        self, function: Callable[..., Vector], point: Vector, inputs: Vector
    ) -> tuple[Callable[..., Any], ...]:
        count = len(point)
        directions = tuple(torch.empty_like(tensor) for tensor in point)  # not θ itself, for tracing
        arguments = (*point, *directions, *inputs)
        graph = traced(function, arguments)
        # Without writes in place: one would have to be in the same part as its target.
        graph = traced(torch.func.functionalize(graph, remove="mutations"), arguments)
        parts = linearised(merge_convolutions(_without_repeats(graph)), range(count, 2 * count))
        return tuple(self._finished(part) for part in parts)

    def _finished(self, graph: fx.GraphModule) -> Callable[..., Any]:
        return torch.compile(graph, dynamic=False, fullgraph=True, options=_OPTIONS) if self.compile else graph


def _laid_out_as(params: Vector, direction: Vector) -> Vector:
    """Return the direction in the parameters' memory format. Another format would be compiled again."""
    return tuple(
        d.detach() if d.stride() == p.stride() else torch.empty_like(p).copy_(d)
        for p, d in zip(params, direction, strict=True)
    )


def _value(loss: PureLoss, count: int) -> Callable[..., Tensor]:
    return lambda *arguments: mean(loss(arguments[:count], arguments[count:]))


def _every(loss: PureLoss, count: int) -> Callable[..., Tensor]:
    return lambda *arguments: loss(arguments[:count], arguments[count:])


def _value_and_tangent_of(loss: PureLoss, count: int) -> Callable[..., tuple[Tensor, Tensor]]:
    """Return the function (θ, q, inputs) ↦ (ℓ, D_q ℓ)."""

    def both(*arguments: Tensor) -> tuple[Tensor, Tensor]:
        params, direction, inputs = arguments[:count], arguments[count : 2 * count], arguments[2 * count :]
        value, slope = torch.func.jvp(lambda *p: loss(p, inputs), params, direction)[:2]
        return value, slope

    return both


def _tangent_of(loss: PureLoss, count: int) -> Callable[..., Tensor]:
    """Return the function (θ, q, inputs) ↦ D_q ℓ. With ℓ as a second result, the backward pass would cover it too."""
    both = _value_and_tangent_of(loss, count)
    return lambda *arguments: both(*arguments)[1]


def _product(loss: PureLoss, count: int) -> Callable[..., Vector]:
    """Return the function (θ, v, inputs) ↦ H v."""

    def product(*arguments: Tensor) -> Vector:
        params, direction, inputs = arguments[:count], arguments[count : 2 * count], arguments[2 * count :]
        gradient = torch.func.grad(lambda p: mean(loss(p, inputs)))
        result: Vector = torch.func.jvp(gradient, (params,), (direction,))[1]
        return result

    return product


def _gauss_newton(loss: SplitLoss, count: int) -> Callable[..., Vector]:
    """Return the function (θ, v, inputs) ↦ Jᵀ S J v."""
    return lambda *arguments: gauss_newton_product(
        loss, arguments[:count], arguments[count : 2 * count], arguments[2 * count :]
    )


def traced(function: Callable[..., Any], arguments: Vector) -> fx.GraphModule:
    """Return the function as a graph of tensor operations for arguments of these shapes. Raise if it has none."""
    load_forward_mode()
    with Replaced(_DEFINITIONS):
        try:
            graph = trace(function, arguments)
        except Exception as error:  # torch raises many kinds
            raise UntraceableError(f"the loss cannot be traced ({type(error).__name__}: {error})") from error
    for node in graph.graph.nodes:
        tags = getattr(node.target, "tags", ())
        if torch.Tag.nondeterministic_seeded in tags:
            raise UntraceableError(f"the loss draws random numbers ({node.target}), which a graph would draw only once")
        if node.target in (torch.ops.aten.alias.default, torch.ops.aten.detach.default):
            node.replace_all_uses_with(node.args[0])
    graph.graph.eliminate_dead_code()
    graph.recompile()
    return graph


def _without_repeats(module: fx.GraphModule) -> fx.GraphModule:
    """Compute equal nodes once. Tracing repeats the forward pass, for instance."""
    known: dict[int, fx.Node] = {}
    for node in module.graph.nodes:
        if node.op == "get_attr":  # equal constants have different names
            first = known.setdefault(id(getattr(module, node.target)), node)
            if first is not node:
                node.replace_all_uses_with(first)
    return fx.GraphModule(module, without_repeats(module.graph))
