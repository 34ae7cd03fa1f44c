"""Traced graphs against the same derivatives taken in Python, in float64."""

import dataclasses
import shutil
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from madao.hypergrad import ForwardOverReverse, FunctionalModel, Neumann, Problem, Traced, hypergradient
from madao.hypergrad.autodiff import norms as definitions
from madao.hypergrad.autodiff.traced import UntraceableError

BATCH, SIDE = 6, 8


class Residual(nn.Module):
    """Two branches of different convolutions that join."""

    def __init__(self, norm: Callable[[int], nn.Module], groups: int = 1, bias: bool = False) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1, bias=bias)
        self.norm1, self.norm2 = norm(8), norm(16)
        self.conv1 = nn.Conv2d(8, 16, 3, 2, padding=1, groups=groups, bias=bias)
        self.conv2 = nn.Conv2d(16, 16, 3, padding=1, groups=groups, bias=bias)
        self.shortcut = nn.Conv2d(8, 16, 1, 2, bias=bias)
        self.head = nn.Linear(16, 4)

    def forward(self, images: Tensor) -> Tensor:
        active = F.relu(self.norm1(self.stem(images)))
        joined = self.conv2(F.relu(self.norm2(self.conv1(active)))) + self.shortcut(active)
        outputs: Tensor = self.head(joined.mean((2, 3)))
        return outputs


def two_layers() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(3 * SIDE * SIDE, 5), nn.Tanh(), nn.LayerNorm(5), nn.Linear(5, 4))


class Activated(nn.Module):
    """Convolution, norm, activation, convolution."""

    def __init__(self, activation: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.first, self.norm, self.second = nn.Conv2d(3, 6, 3), nn.BatchNorm2d(6), nn.Conv2d(6, 4, 3)
        self.activation = activation

    def forward(self, images: Tensor) -> Tensor:
        outputs: Tensor = self.second(self.activation(self.norm(self.first(images))))
        return outputs.mean((2, 3))


class Sums(nn.Module):
    """Sums of convolutions that must not be merged: other kernels, one term repeated, two resolutions."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.wide, self.narrow = nn.Conv2d(3, 6, 3), nn.Conv2d(6, 6, 3), nn.Conv2d(6, 6, 2)
        self.local, self.overall, self.head = nn.Conv2d(6, 6, 1), nn.Conv2d(6, 6, 1), nn.Conv2d(6, 4, 2)

    def forward(self, images: Tensor) -> Tensor:
        features = torch.tanh(self.stem(images))
        kernels = self.wide(features).mean((2, 3)) + self.narrow(features).mean((2, 3))
        joined = self.local(features) + self.overall(features.mean((2, 3), keepdim=True))
        head = self.head(joined).mean((2, 3)) + self.head(F.avg_pool2d(features, 2)).mean((2, 3))
        return torch.add(head, kernels[:, :4])


def with_a_written_part(values: Tensor) -> Tensor:
    result = torch.zeros_like(values)
    result[:, :2] = values[:, :2].square()
    result[:, 2:] = values[:, 2:] * 3
    return result


MODELS: dict[str, Callable[[], nn.Module]] = {
    "silu": lambda: Activated(nn.SiLU(inplace=True)),
    "mish": lambda: Activated(nn.Mish()),
    "hardswish": lambda: Activated(nn.Hardswish(inplace=True)),
    "gelu": lambda: Activated(nn.GELU()),
    "written in place": lambda: Activated(with_a_written_part),
    "other sums": Sums,
    "batch norm": lambda: Residual(nn.BatchNorm2d),
    "group norm": lambda: Residual(lambda channels: nn.GroupNorm(2, channels)),
    "instance norm": lambda: Residual(lambda channels: nn.InstanceNorm2d(channels, affine=True)),
    "grouped convolutions with bias": lambda: Residual(nn.BatchNorm2d, groups=4, bias=True),
    "layers": two_layers,
    "rms norm": lambda: nn.Sequential(nn.Flatten(), nn.Linear(3 * SIDE * SIDE, 5), nn.RMSNorm(5), nn.Linear(5, 4)),
}


@dataclasses.dataclass
class Case:
    loss: Callable[[Any, Any], Tensor]
    params: tuple[Tensor, ...]
    direction: tuple[Tensor, ...]
    images: Tensor
    labels: Tensor


def case(name: str, mode: str = "train", dtype: torch.dtype = torch.float64) -> Case:
    torch.manual_seed(0)
    model = MODELS[name]().to(dtype)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            assert module.running_mean is not None
            module.running_mean.normal_()
    images, labels = torch.rand(BATCH, 3, SIDE, SIDE, dtype=dtype), torch.randint(0, 4, (BATCH,))
    pure = FunctionalModel(model, mode)  # type: ignore[arg-type]
    params = tuple(torch.randn_like(p) * 0.5 for p in pure.params.values())

    def loss(params: tuple[Tensor, ...], inputs: tuple[Tensor, ...]) -> Tensor:
        outputs = pure(dict(zip(pure.params, params, strict=True)), inputs[0])
        return F.cross_entropy(outputs, labels, reduction="none")

    return Case(loss, params, tuple(torch.randn_like(p) for p in params), images, labels)


def assert_close(found: Any, expected: Any, tolerance: float = 1e-9) -> None:
    for a, b in zip(found, expected, strict=True):
        assert (a is None) == (b is None)
        if a is not None:
            assert torch.allclose(a, b, rtol=tolerance, atol=tolerance), (a - b).abs().max()


def assert_same_derivatives(traced: Traced, case: Case, tolerance: float = 1e-9) -> None:
    reference, arguments = ForwardOverReverse(), (case.loss, case.params)
    inputs = (case.images,)
    product, expected_product = (kind.products(*arguments, inputs) for kind in (traced, reference))
    for direction in (case.direction, case.params):  # what was linearised serves twice
        assert_close(product(direction), expected_product(direction), tolerance)
    (slope, gradient), (expected, expected_gradient) = (
        kind.directional(*arguments, case.direction, inputs) for kind in (traced, reference)
    )
    assert_close((slope, *gradient), (expected, *expected_gradient), tolerance)
    values = case.loss(case.params, inputs)
    for kind in (traced, reference):
        assert_close(kind.slopes(*arguments, case.direction, inputs), (values, expected), tolerance)
    (value, found), (expected_value, expected_found) = (
        kind.gradient(*arguments, inputs) for kind in (traced, reference)
    )
    assert_close((value, *found), (expected_value, *expected_found), tolerance)


@pytest.mark.parametrize("mode", ["train", "eval"])
@pytest.mark.parametrize("name", MODELS)
def test_derivatives_equal_the_reference(name: str, mode: str) -> None:
    assert_same_derivatives(Traced(), case(name, mode))


@pytest.mark.skipif(shutil.which("g++") is None, reason="compiling for the CPU needs a compiler")
@pytest.mark.filterwarnings("ignore")  # of torch's own making
def test_compiled_graphs_give_the_same() -> None:
    assert_same_derivatives(Traced(compile=True), case("layers", dtype=torch.float32), 1e-4)


def test_graphs_read_new_data_from_the_tensors_traced() -> None:
    traced, given = Traced(), case("batch norm")
    traced.slopes(given.loss, given.params, given.direction, (given.images,))
    traced.products(given.loss, given.params, (given.images,))(given.direction)
    given.labels.copy_((given.labels + 1) % 4)
    given.images.mul_(0.5)
    for param in given.params:
        param.mul_(1.1)
    assert_same_derivatives(traced, given)


def test_slopes_store_nothing_for_a_backward_pass() -> None:
    traced, given = Traced(), case("batch norm")
    kept: list[Tensor] = []
    with torch.autograd.graph.saved_tensors_hooks(kept.append, lambda _: given.images):
        traced.slopes(given.loss, given.params, given.direction, (given.images.requires_grad_(),))
    assert not kept


def products_of(traced: Traced) -> Any:
    return next(made for (kind, *_), made in traced._made.items() if kind == "products")


def test_sums_of_convolutions_are_merged() -> None:
    traced, given = Traced(), case("batch norm")
    traced.products(given.loss, given.params, (given.images,))(given.direction)
    first, then = products_of(traced)

    def count(graph: Any) -> tuple[int, int]:
        names = Counter(str(node.target) for node in graph.graph.nodes)
        return names["aten.convolution.default"], names["aten.convolution_backward.default"]

    # Four convolutions. The images have no gradient, and the stem's input no derivative.
    assert count(first) == (4, 4 - 1)
    assert count(then) == (4, 2 * 4 - 1)


def test_products_do_not_repeat_the_part_without_the_vector() -> None:
    traced, given = Traced(), case("batch norm")
    traced.products(given.loss, given.params, (given.images,))(given.direction)
    _, then = products_of(traced)
    targets = {str(node.target) for node in then.graph.nodes}
    assert "aten.var_mean.correction" not in targets
    assert "aten._log_softmax.default" not in targets


def test_a_loss_is_traced_once_in_all() -> None:
    traced, given = Traced(), case("layers")
    problem = Problem(given.params, given.images.clone().requires_grad_(), lambda p, x: given.loss(p, (x,)), outer)
    expected = hypergradient(problem, Neumann(3, 0.1)).grads
    for _ in range(3):
        found = hypergradient(problem, Neumann(3, 0.1), hvp=traced).grads
        assert torch.allclose(found, expected, rtol=1e-9, atol=1e-12)
    assert Counter(kind for kind, *_ in traced._made) == {"products": 1, "directional": 1, "gradient": 1}


def outer(params: tuple[Tensor, ...], inputs: Tensor) -> Tensor:
    return torch.stack([param.square().sum() for param in params]).sum()


def test_losses_that_draw_random_numbers_raise() -> None:
    pure = FunctionalModel(nn.Sequential(nn.Flatten(), nn.Linear(4, 2), nn.Dropout(0.5)))
    params = tuple(pure.params.values())

    def loss(params: tuple[Tensor, ...], inputs: tuple[Tensor, ...]) -> Tensor:
        outputs: Tensor = pure(dict(zip(pure.params, params, strict=True)), inputs[0])
        return outputs.square().mean(1)

    with pytest.raises(UntraceableError, match="bernoulli"):
        Traced().slopes(loss, params, params, (torch.rand(3, 4),))


def test_other_shapes_are_traced_again() -> None:
    traced, given = Traced(), case("batch norm")
    for side in (SIDE, SIDE + 3):
        images = torch.rand(BATCH, 3, side, side, dtype=torch.float64)
        assert_same_derivatives(traced, dataclasses.replace(given, images=images))


def test_norms_that_torch_differentiates_wrongly_raise() -> None:
    params = (torch.rand(4, 4, dtype=torch.float64),)

    def loss(params: tuple[Tensor, ...], inputs: tuple[Tensor, ...]) -> Tensor:
        return torch.layer_norm(inputs[0] @ params[0], (4,)).square().sum(1)

    inputs = (torch.rand(3, 4, dtype=torch.float64),)
    with pytest.raises(UntraceableError, match="native_layer_norm"):
        Traced().slopes(loss, params, params, inputs)
    expected = ForwardOverReverse().products(loss, params, inputs)(params)
    assert_close(Traced().products(loss, params, inputs)(params), expected)  # forward over reverse has it right


def test_norms_have_the_values_of_torch() -> None:
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(4, 6, 5, 7, generator=generator, dtype=torch.float64)
    weight, bias = (torch.randn(6, generator=generator, dtype=torch.float64) for _ in range(2))
    mean, variance = weight + 1, weight.square() + 0.1
    for training in (True, False):
        expected = F.batch_norm(images, mean.clone(), variance.clone(), weight, bias, training, 0.1, 1e-3)
        assert torch.allclose(
            definitions.batch_norm(images, mean, variance, weight, bias, training, 0.1, 1e-3), expected
        )
    for w, b in ((weight, bias), (weight, None), (None, None)):
        expected = F.group_norm(images, 3, w, b, eps=1e-3)
        assert torch.allclose(definitions.group_norm(images, 3, w, b, eps=1e-3), expected)
        expected = F.instance_norm(images, None, None, w, b, eps=1e-3)
        assert torch.allclose(definitions.instance_norm(images, None, None, w, b, eps=1e-3), expected)
    running = F.instance_norm(images, mean, variance, weight, bias, use_input_stats=False)
    assert torch.allclose(
        definitions.instance_norm(images, mean, variance, weight, bias, use_input_stats=False), running
    )
    shape, scale = (5, 7), torch.randn(5, 7, generator=generator, dtype=torch.float64)
    for w, b in ((scale, 1 - scale), (None, None)):
        expected = F.layer_norm(images, shape, w, b, eps=1e-3)
        assert torch.allclose(definitions.layer_norm(images, shape, w, b, eps=1e-3), expected)
        for eps in (1e-2, None):
            expected = F.rms_norm(images, shape, w, eps)
            assert torch.allclose(definitions.rms_norm(images, shape, w, eps), expected, rtol=1e-12)


@pytest.mark.parametrize("name", ["batch_norm", "group_norm", "layer_norm", "instance_norm", "rms_norm"])
def test_norms_have_derivatives_of_every_mode(name: str) -> None:
    generator = torch.Generator().manual_seed(0)
    images, weight, bias = (
        torch.randn(shape, generator=generator, dtype=torch.float64).requires_grad_() for shape in ((3, 4, 2, 2), 4, 4)
    )
    functions: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
        "batch_norm": lambda x, w, b: definitions.batch_norm(x, None, None, w, b, True, eps=0.1),
        "group_norm": lambda x, w, b: definitions.group_norm(x, 2, w, b, eps=0.1),
        "layer_norm": lambda x, w, b: definitions.layer_norm(x, (2, 2), w.reshape(2, 2), b.reshape(2, 2), eps=0.1),
        "instance_norm": lambda x, w, b: definitions.instance_norm(x, None, None, w, b, eps=0.1),
        "rms_norm": lambda x, w, b: definitions.rms_norm(x, (2, 2), w.reshape(2, 2), eps=0.1) + b.sum(),
    }
    arguments = (images, weight, bias)
    assert torch.autograd.gradcheck(functions[name], arguments, check_forward_ad=True)
    assert torch.autograd.gradgradcheck(functions[name], arguments, check_fwd_over_rev=True)
