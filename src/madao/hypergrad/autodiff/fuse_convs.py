"""A rewrite of graphs that merges sums of two convolutions, or of their gradients, into one larger convolution."""

import operator
from typing import Any

import torch
from torch import fx

_ADD = torch.ops.aten.add.Tensor
_CONVOLUTION = torch.ops.aten.convolution.default
_BACKWARD = torch.ops.aten.convolution_backward.default
_CAT = torch.ops.aten.cat.default


def merge_convolutions(module: fx.GraphModule) -> fx.GraphModule:
    """Merge sums of convolutions in a flat graph, in place. Half as many kernels do the same work.

    Let ∗ be a convolution, and [·,·]₁ and [·,·]₀ the concatenation along dimensions 1 and 0. Two convolutions have the
    sum w ∗ x + u ∗ y = [w, u]₁ ∗ [x, y]₁. Two gradients in the input have as their sum the gradient for the weight
    [w, u]₀ and the cotangent [g, h]₁. Two gradients in the weight have as their sum the gradient for the input [x, y]₀
    and the cotangent [g, h]₀. Grouped convolutions are left alone, since concatenation would interleave their groups.
    """
    graph = module.graph
    for add in list(graph.nodes):
        if add.target is not _ADD or add.kwargs or not all(isinstance(term, fx.Node) for term in add.args):
            continue
        terms = [found for found in map(_source, add.args) if found is not None]
        if len(terms) < 2:
            continue
        (first, output), (second, other) = terms
        if first.target is not second.target or output != other or first.args[3:10] != second.args[3:10]:
            continue
        if not _stackable(first, second, output):
            continue
        with graph.inserting_before(add):
            merged = _forward(graph, first, second) if output is None else _backward(graph, first, second, output)
        if merged is not None:
            add.replace_all_uses_with(merged)
            graph.erase_node(add)
    graph.eliminate_dead_code()
    module.recompile()
    return module


def _source(node: fx.Node) -> tuple[fx.Node, int | None] | None:
    """Return the convolution that computes a summand, and the number of its output if it is a gradient."""
    if node.target is _CONVOLUTION and len(node.users) == 1:
        return (node, None) if node.args[8] == 1 and not node.args[6] else None
    if getattr(node.target, "__name__", "") != "getitem" or len(node.users) != 1:
        return None
    of, index = node.args
    assert isinstance(of, fx.Node)
    assert isinstance(index, int)
    if of.target is not _BACKWARD or len(of.users) != 1 or of.args[9] != 1 or of.args[7]:
        return None
    return of, index


def _stackable(first: fx.Node, second: fx.Node, output: int | None) -> bool:
    """Return whether the tensors agree in every dimension but the one along which they would be concatenated.

    Strides and padding may be equal where kernels are not, and a sum may contain the same term twice.
    """
    along = {None: {0: 1, 1: 1}, 0: {0: 1, 2: 0}, 1: {0: 0, 1: 0}}.get(output, {})
    for place, dimension in along.items():
        shapes = []
        for node in (first, second):
            value = getattr(node.args[place], "meta", {}).get("val")
            if value is None:
                return False
            shapes.append([size for axis, size in enumerate(value.shape) if axis != dimension])
        if shapes[0] != shapes[1]:
            return False
    # Gradients in an input are summed for the same input.
    if output == 0:
        values = [getattr(node.args[1], "meta", {}).get("val") for node in (first, second)]
        known = [value.shape for value in values if value is not None]
        return len(known) == 2 and known[0] == known[1]
    return True


def _cat(graph: fx.Graph, first: Any, second: Any, dimension: int) -> fx.Node:
    return graph.call_function(_CAT, ([first, second], dimension))


def _forward(graph: fx.Graph, first: fx.Node, second: fx.Node) -> fx.Node | None:
    biases = [node.args[2] for node in (first, second) if node.args[2] is not None]
    if len(biases) > 1:
        return None
    inputs, weights = (_cat(graph, first.args[place], second.args[place], 1) for place in (0, 1))
    return graph.call_function(_CONVOLUTION, (inputs, weights, biases[0] if biases else None, *first.args[3:]))


def _backward(graph: fx.Graph, first: fx.Node, second: fx.Node, output: int) -> fx.Node | None:
    (cotangent, inputs, weight), (other, inputs_too, weight_too) = first.args[:3], second.args[:3]
    stacked: tuple[Any, ...]
    if output == 0:
        stacked = _cat(graph, cotangent, other, 1), inputs, _cat(graph, weight, weight_too, 0)
    elif output == 1:
        stacked = _cat(graph, cotangent, other, 0), _cat(graph, inputs, inputs_too, 0), weight
    else:
        return None
    mask = [place == output for place in range(3)]
    both = graph.call_function(_BACKWARD, (*stacked, None, *first.args[4:10], mask))
    return graph.call_function(operator.getitem, (both, output))
