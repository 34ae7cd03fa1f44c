"""A watch on every private API of torch that the package uses: a failure here means that torch has changed it."""

import ast
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

import madao
from madao.hypergrad import ForwardOverReverse
from madao.hypergrad.autodiff import torch_compat

CHANGED = f"torch {torch.__version__} has changed a private API; mend madao.hypergrad.autodiff.torch_compat"
SOURCE = Path(madao.__file__).parent
HOMES = {"hypergrad/autodiff/torch_compat.py", "device/allocator.py"}
PUBLIC = {"__version__"}


class Watch(TorchFunctionMode):
    """A mode that notes whether gradients are taken with a graph."""

    def __init__(self) -> None:
        super().__init__()
        self.graphs: list[bool] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.autograd.grad:
            self.graphs.append(kwargs["create_graph"])
        return func(*args, **(kwargs or {}))


def private_uses(path: Path) -> set[str]:
    """The private modules and attributes of torch in a file. `torch._foreach_…` is documented, and none of them."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        names: list[str] = []
        if isinstance(node, ast.Attribute):
            names = [ast.unparse(node)]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        for name in names:
            parts = name.split(".")
            private = [part for part in parts[1:] if part.startswith("_") and not part.startswith("_foreach_")]
            if parts[0] == "torch" and private and parts[-1] not in PUBLIC and "ops" not in parts:
                found.add(name)
    return found


def test_private_apis_are_used_only_in_their_homes() -> None:
    uses = {str(path.relative_to(SOURCE)): private_uses(path) for path in SOURCE.rglob("*.py")}
    elsewhere = {name: found for name, found in uses.items() if found and name not in HOMES}
    elsewhere.pop("export/torchvision.py", None)  # whose inputs torchvision itself flattens by torch.utils._pytree
    assert not elsewhere
    assert uses["hypergrad/autodiff/torch_compat.py"]
    patched = [name for name in uses if "mock" in (SOURCE / name).read_text()]
    assert not patched


def test_functions_are_replaced_where_a_layer_of_torch_calls_them() -> None:
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.5, batch_first=True)
    calls: list[str] = []

    def dropout(values: Tensor, p: float, training: bool, inplace: bool = False) -> Tensor:
        calls.append("dropout")
        return values

    def attention(query: Tensor, key: Tensor, value: Tensor, mask: Any, p: float, causal: bool) -> Tensor:
        calls.append("attention")
        return query + 0 * (key + value)

    replacements: dict[Any, Any] = {F.dropout: dropout, F.scaled_dot_product_attention: attention}
    images = torch.rand(2, 3, 8)
    with torch_compat.Replaced(replacements):
        layer.train()(images)
        layer.eval()
        with torch.no_grad():  # where torch would take its fast path
            layer(images)
    assert calls == 2 * ["attention", *3 * ["dropout"]], CHANGED
    layer(images)
    assert len(calls) == 8
    weights = torch_compat.Replaced({F.softmax: lambda *_, **__: 1 / 0})
    with weights, pytest.raises(ZeroDivisionError):
        F.softmax(images, 0)


def test_replaced_functions_may_be_nested() -> None:
    """The inner mode is asked first, and its replacement meets the outer one."""
    with (
        torch_compat.Replaced({F.batch_norm: lambda input, *_, **__: input + 1}),
        torch_compat.Replaced({F.batch_norm: lambda *args, **kwargs: 10 * F.batch_norm(*args, **kwargs)}),
    ):
        found = F.batch_norm(torch.ones(2, 3), None, None, training=True)
    assert torch.equal(found, torch.full((2, 3), 20.0))


def test_gradients_without_a_graph() -> None:
    point = torch.rand(3, dtype=torch.float64)

    def cubes(x: Tensor) -> Tensor:
        return x.pow(3).sum()

    def curved(x: Tensor) -> tuple[Tensor, Tensor]:
        """A function with a gradient inside, whose graph is needed."""
        slope = torch.func.grad(cubes)(x)
        return slope.square().sum(), slope

    with Watch() as watch:
        found = torch_compat.grad_without_graph(cubes)(point)
    torch.testing.assert_close(found, 3 * point**2)
    assert watch.graphs == [False], CHANGED
    with Watch() as watch:
        gradient, slope = torch_compat.grad_without_graph(curved, has_aux=True)(point)
    torch.testing.assert_close(gradient, 36 * point**3)
    torch.testing.assert_close(slope, 3 * point**2)
    assert watch.graphs == [True, False], CHANGED


def test_second_derivatives_keep_no_graph_of_the_gradient_unless_they_must() -> None:
    """The backward pass of GroupNorm has no forward derivative without one."""
    inputs = (torch.rand(3, 4, requires_grad=True),)
    for norm, expected in ((torch.tanh, [False]), (lambda values: F.group_norm(values, 2), [False, True])):

        def loss(params: Any, inputs: Any, norm: Any = norm) -> Tensor:
            values: Tensor = norm(inputs[0] @ params[0])
            return values.pow(3).sum(1)

        params, kind = (torch.rand(4, 4),), ForwardOverReverse()
        with Watch() as watch:
            kind.products(loss, params, inputs)(params)
        assert watch.graphs == expected
        with Watch() as watch:
            kind.directional(loss, params, params, inputs)
        assert watch.graphs == expected


def test_forward_mode_does_not_warn() -> None:
    code = (
        "import warnings, torch; warnings.simplefilter('error')\n"
        "from madao.hypergrad import ForwardOverReverse\n"
        "loss = lambda p, x: torch.nn.functional.log_softmax(x[0] @ p[0], 1).square().sum(1)\n"
        "p, x = (torch.rand(3, 4),), (torch.rand(5, 3),)\n"
        "ForwardOverReverse().products(loss, p, x)(p); ForwardOverReverse().directional(loss, p, p, x)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{CHANGED}\n{done.stderr}"


def test_graphs_are_traced_and_repeats_removed() -> None:
    closed_over = torch.ones(3)

    def function(x: Tensor) -> Tensor:
        return x.sin() + x.sin() * closed_over

    graph = torch_compat.trace(function, (torch.rand(3),))
    closed_over.fill_(2.0)
    torch.testing.assert_close(graph(torch.ones(3)), 3 * torch.ones(3).sin())
    sines = [node for node in torch_compat.without_repeats(graph.graph).nodes if "sin" in str(node.target)]
    assert len(sines) == 1, CHANGED


def test_operators_say_whether_they_write() -> None:
    assert torch_compat.is_in_place(torch.ops.aten.add_.Tensor), CHANGED
    assert not torch_compat.is_in_place(torch.ops.aten.add.Tensor)
    assert not torch_compat.is_in_place(len)


def test_the_memory_budget_is_set_inside_alone() -> None:
    from torch._functorch import config

    before = config.activation_memory_budget
    with torch_compat.activation_memory_budget(0.25):
        assert config.activation_memory_budget == 0.25, CHANGED
    assert config.activation_memory_budget == before


def test_a_compiled_module_is_seen_through() -> None:
    model = nn.Linear(2, 2)
    assert torch_compat.uncompiled(torch.compile(model, backend="eager")) is model, CHANGED  # type: ignore[arg-type]
    assert torch_compat.uncompiled(model) is None


def test_trees_are_taken_apart_and_put_together() -> None:
    tree = {"a": [torch.ones(1), torch.ones(2)], "b": (torch.ones(3),)}
    leaves, structure = torch_compat.tree_flatten(tree)
    assert [len(leaf) for leaf in leaves] == [1, 2, 3], CHANGED
    assert torch_compat.tree_leaves(tree) == leaves
    again = torch_compat.tree_unflatten(leaves, structure)
    assert again["b"][0] is tree["b"][0]


def test_the_allocator_has_its_switches() -> None:
    known = hasattr(torch._C, "_accelerator_setAllocatorSettings")
    assert known or hasattr(torch.cuda.memory, "_set_allocator_settings"), CHANGED
    if torch.version.cuda is not None:
        assert hasattr(torch._C, "_cuda_clearCublasWorkspaces"), CHANGED


def test_weight_normalization_calls_the_function_that_is_replaced() -> None:
    calls: list[tuple[int, ...]] = []

    def replacement(v: Tensor, g: Tensor, dim: int = 0) -> Tensor:
        calls.append((*v.shape, dim))
        return v * g

    layer = nn.utils.parametrizations.weight_norm(nn.Linear(3, 2))
    with torch_compat.Replaced({torch_compat.weight_norm: replacement}):
        layer(torch.rand(1, 3))
    assert calls == [(2, 3, 0)], CHANGED
