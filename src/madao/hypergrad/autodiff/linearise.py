"""A split of a graph that is linear in some inputs: the part that does not depend on them runs once."""

from collections.abc import Iterable

import torch
from torch import fx

from madao.hypergrad.autodiff.torch_compat import is_in_place

_VIEWS = {
    torch.ops.aten.view.default,
    torch.ops.aten.expand.default,
    torch.ops.aten.t.default,
    torch.ops.aten.unsqueeze.default,
    torch.ops.aten._to_copy.default,
}


def linearised(module: fx.GraphModule, linear: Iterable[int]) -> tuple[fx.GraphModule, fx.GraphModule]:
    """Split a flat graph f(…, v, …) that is linear in v.

    The residuals between the two parts are the values that are expensive to compute. Pointwise functions of them are
    not stored: the second part computes them again and fuses them with the operations that use them.

    Args:
        module: The graph.
        linear: The positions of v among its inputs.

    Returns:
        `first(*others) -> residuals` and `then(*residuals, *v) -> result`.

    Raises:
        ValueError: If the graph writes in place.
    """
    inputs = [node for node in module.graph.nodes if node.op == "placeholder"]
    vectors = [inputs[place] for place in linear]
    others = [node for node in inputs if node not in set(vectors)]
    moving = set(vectors)
    for node in module.graph.nodes:
        if any(source in moving for source in node.all_input_nodes):
            moving.add(node)
    needed, residuals = _needed(module, moving)
    for node in needed:
        if node.op == "call_function" and is_in_place(node.target):
            raise ValueError(f"the graph writes in place ({node.target}); make it functional first")
    first = fx.Graph()
    copies = {node: first.placeholder(node.name) for node in others}
    for node in module.graph.nodes:
        if node not in moving and node.op != "placeholder":
            copies[node] = first.node_copy(node, copies.__getitem__)
    first.output(tuple(copies[node] for node in residuals))
    then = fx.Graph()
    copies = {node: then.placeholder(node.name) for node in (*residuals, *vectors)}
    for node in module.graph.nodes:
        if node in needed and node not in copies:
            copies[node] = then.node_copy(node, copies.__getitem__)
    parts = (fx.GraphModule(module, first), fx.GraphModule(module, then))
    for part in parts:
        part.graph.eliminate_dead_code()
        part.recompile()
    return parts


def _needed(module: fx.GraphModule, moving: set[fx.Node]) -> tuple[set[fx.Node], list[fx.Node]]:
    """Return the nodes of the second graph, and the residuals that it takes from the first."""
    output = next(node for node in module.graph.nodes if node.op == "output")
    needed: set[fx.Node] = {output}
    residuals: set[fx.Node] = set()
    waiting = list(output.all_input_nodes)
    while waiting:
        node = waiting.pop()
        if node in needed or node in residuals:
            continue
        if node in moving or _computed_anew(node, moving):
            needed.add(node)
            waiting.extend(node.all_input_nodes)
        else:
            residuals.add(node)
    return needed, [node for node in module.graph.nodes if node in residuals]


def _computed_anew(node: fx.Node, moving: set[fx.Node]) -> bool:
    """Return whether a node that does not depend on v is cheaper to compute again than to store."""
    if node.op != "call_function":
        return False
    pointwise = torch.Tag.pointwise in getattr(node.target, "tags", ()) or node.target in _VIEWS
    # Sums join branches of a network, at the end of long chains. Inputs of convolutions are stored in any case.
    joins = node.target is torch.ops.aten.add.Tensor and len(node.all_input_nodes) > 1
    feeds = any(getattr(user.target, "__name__", "").startswith(("convolution", "cat")) for user in node.users)
    return pointwise and not joins and not feeds
