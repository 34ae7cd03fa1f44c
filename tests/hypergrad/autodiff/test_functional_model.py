"""Any `nn.Module`, evaluated purely."""

import copy
import functools
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrizations

from madao.hypergrad import (
    ConjugateGradient,
    DoubleBackward,
    FiniteDifference,
    ForwardOverReverse,
    FunctionalModel,
    Neumann,
    Problem,
    Term,
    hypergradient,
)
from madao.hypergrad.autodiff.products import SecondOrder

GENERATOR = torch.Generator().manual_seed(0)
IMAGES = torch.rand(12, 1, 8, 8, generator=GENERATOR)
LABELS = torch.randint(0, 3, (12,), generator=GENERATOR)


class Attention(nn.Module):
    """A small vision transformer."""

    def __init__(self) -> None:
        super().__init__()
        self.patch = nn.Conv2d(1, 8, 4, stride=4)
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.1, batch_first=True)
        self.head = nn.Linear(8, 3)

    def forward(self, images: Tensor) -> Tensor:
        result: Tensor = self.head(self.layer(self.patch(images).flatten(2).mT).mean(1))
        return result


class Tied(nn.Module):
    """One matrix used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(64, 64)
        self.second = nn.Linear(64, 64)
        self.second.weight = self.first.weight
        self.head = nn.Linear(64, 3)

    def forward(self, images: Tensor) -> Tensor:
        result: Tensor = self.head(torch.tanh(self.second(torch.tanh(self.first(images.flatten(1))))))
        return result


def convolutional(norm: Callable[[int], nn.Module]) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 6, 3), norm(6), nn.ReLU(), nn.Dropout(0.3), nn.AvgPool2d(2), nn.Flatten(), nn.Linear(54, 3)
    )


def activated(activation: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 6, 3), activation, nn.AvgPool2d(2), nn.Flatten(), nn.Linear(54, 3))


def reparametrized(reparametrize: Callable[[nn.Module], nn.Module]) -> nn.Module:
    model = activated(nn.GELU())
    for layer in (0, 4):
        reparametrize(model[layer])  # type: ignore[index]
    return model


def frozen() -> nn.Module:
    model = convolutional(nn.BatchNorm2d)
    model[0].requires_grad_(False)  # type: ignore[index]
    return model


def compiled() -> nn.Module:
    model: nn.Module = torch.compile(convolutional(nn.BatchNorm2d), backend="eager")  # type: ignore[assignment]
    return model


MODELS: dict[str, Callable[[], nn.Module]] = {
    "batch norm": lambda: convolutional(nn.BatchNorm2d),
    "group norm": lambda: convolutional(lambda n: nn.GroupNorm(2, n)),
    "layer norm": lambda: convolutional(lambda n: nn.LayerNorm([n, 6, 6])),
    "hard sigmoid": lambda: activated(nn.Hardsigmoid()),
    "hard swish": lambda: activated(nn.Hardswish()),
    "weight norm": lambda: reparametrized(parametrizations.weight_norm),
    "spectral norm": lambda: reparametrized(parametrizations.spectral_norm),
    "attention": Attention,
    "tied": Tied,
    "frozen": frozen,
    "compiled": compiled,
    "data parallel": lambda: nn.DataParallel(convolutional(nn.BatchNorm2d)).cpu(),
}
every_model = pytest.mark.parametrize("name", MODELS)


def build(name: str) -> nn.Module:
    torch.manual_seed(0)
    return MODELS[name]()


def problem(model: nn.Module, images: Tensor = IMAGES, dtype: torch.dtype = torch.float32) -> Problem:
    model = model.to(dtype)
    inner, outer = FunctionalModel(model, "train", seed=3), FunctionalModel(model, "eval", seed=3)
    return Problem(
        inner.params,
        images.to(dtype),
        lambda p, x: F.cross_entropy(inner(p, x), LABELS[: len(x)], reduction="none"),
        lambda p, _: F.cross_entropy(outer(p, images.to(dtype).flip(0)), LABELS[: len(images)].flip(0)),
    )


@every_model
def test_models_and_random_state_are_left_unchanged(name: str) -> None:
    model = build(name)
    model.train()
    next(iter(model.modules())).training = True
    state = copy.deepcopy(model.state_dict())
    modes = [module.training for module in model.modules()]
    random_state = torch.get_rng_state()
    for kind in (ForwardOverReverse(), DoubleBackward(), FiniteDifference()):
        hypergradient(problem(model), Neumann(1, 1e-3), kind)
    assert torch.equal(torch.get_rng_state(), random_state)
    assert [module.training for module in model.modules()] == modes
    for key, value in model.state_dict().items():
        assert torch.equal(value, state[key]), key
    assert all(parameter.grad is None for parameter in model.parameters())
    for module in model.modules():
        assert getattr(module, "track_running_stats", True)


@pytest.mark.parametrize(
    "kind", [ForwardOverReverse(), DoubleBackward(), FiniteDifference()], ids=lambda k: type(k).__name__
)
@every_model
def test_float32_agrees_with_float64(name: str, kind: SecondOrder) -> None:
    """Cosine of the hypergradient in the images, every way of differentiating against the exact one in float64."""
    exact = hypergradient(problem(build(name), dtype=torch.float64), Neumann(5, 1e-2), ForwardOverReverse()).grads
    single = hypergradient(problem(build(name)), Neumann(5, 1e-2), kind).grads
    assert F.cosine_similarity(single.double().flatten(), exact.flatten(), dim=0) > 0.999


@every_model
def test_forward_mode_equals_double_backward(name: str) -> None:
    one, other = (
        hypergradient(problem(build(name), dtype=torch.float64), ConjugateGradient(4, damping=1.0), kind).grads
        for kind in (ForwardOverReverse(), DoubleBackward())
    )
    torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-10)


def test_the_mode_decides_the_statistics_of_batch_norm() -> None:
    model = build("batch norm")
    model[1].running_mean.fill_(0.3)  # type: ignore[index]
    train, evaluate, keep = (FunctionalModel(model, mode) for mode in ("train", "eval", "keep"))
    model.eval()
    expected = model(IMAGES)
    torch.testing.assert_close(evaluate(evaluate.params, IMAGES), expected)
    torch.testing.assert_close(keep(keep.params, IMAGES), expected)
    reference = copy.deepcopy(model).train()
    for each in (reference, model):
        each.get_submodule("3").p = 0.0  # type: ignore[assignment]
    torch.testing.assert_close(train(train.params, IMAGES), reference(IMAGES))
    assert not torch.allclose(train(train.params, IMAGES), expected)


def test_dropout_has_the_same_mask_in_every_pass() -> None:
    model = build("group norm")
    pure = FunctionalModel(model, "train", seed=5)
    torch.manual_seed(1)
    first = pure(pure.params, IMAGES)
    torch.rand(3)
    assert torch.equal(pure(pure.params, IMAGES), first)
    assert not torch.equal(FunctionalModel(model, "train", seed=6)(pure.params, IMAGES), first)


def test_tied_and_frozen_parameters_are_one_and_none() -> None:
    tied = FunctionalModel(build("tied"))
    assert "second.weight" not in tied.params
    zeros = {name: torch.zeros_like(p) for name, p in tied.params.items()}
    assert tied(zeros, IMAGES).abs().max() == 0
    assert {name.split(".")[0] for name in FunctionalModel(build("frozen")).params} == {"1", "6"}
    model = build("tied").requires_grad_(False)
    with pytest.raises(ValueError, match="gradient"):
        _ = FunctionalModel(model).params


def test_modes_are_restored_when_the_model_fails() -> None:
    model = build("batch norm").eval()
    pure = FunctionalModel(model, "train")
    with pytest.raises(RuntimeError):
        pure(pure.params, torch.rand(2, 5, 8, 8))
    assert not any(module.training for module in model.modules())
    assert model[1].track_running_stats  # type: ignore[index]


def test_autocast_runs_in_half_precision_and_agrees_with_float32() -> None:
    model = build("batch norm")
    half = FunctionalModel(model, "train", autocast=torch.bfloat16)
    full = FunctionalModel(model, "train")
    assert half(half.params, IMAGES).dtype == torch.bfloat16

    def gradient(pure: FunctionalModel) -> Tensor:
        setting = Problem(
            pure.params,
            IMAGES,
            lambda p, x: F.cross_entropy(pure(p, x).float(), LABELS),
            lambda p, _: F.cross_entropy(pure(p, IMAGES.flip(0)).float(), LABELS.flip(0)),
        )
        result: Tensor = hypergradient(setting, Neumann(2, 1e-3)).grads
        return result.flatten()

    assert F.cosine_similarity(gradient(half), gradient(full), dim=0) > 0.95


def test_microbatches_sum_to_the_batch() -> None:
    """Of 5, 5 and 2 examples, on a model whose examples do not depend on each other."""
    model = build("layer norm").double()
    pure = FunctionalModel(model, "eval")
    images = IMAGES.double()

    def loss(part: slice, p: dict[str, Tensor], x: Tensor) -> Tensor:
        return F.cross_entropy(pure(p, x[part]), LABELS[part], reduction="none")

    def terms(size: int) -> list[Term]:
        parts = [slice(start, min(start + size, 12)) for start in range(0, 12, size)]
        return [Term(functools.partial(loss, part), (part.stop - part.start) / 12) for part in parts]

    whole, split = (
        hypergradient(Problem(pure.params, images, terms(size), terms(size)), Neumann(3, 1e-2)) for size in (12, 5)
    )
    torch.testing.assert_close(split.grads, whole.grads, rtol=1e-9, atol=1e-14)
    assert split.stats.residual == pytest.approx(whole.stats.residual, rel=1e-9)


def test_memory_does_not_grow_with_the_number_of_products() -> None:
    """The same number of tensors is alive after many products as after one: no graph is kept."""
    import gc

    model = build("batch norm")
    counts = []
    for steps in (1, 1, 12):
        hypergradient(problem(model), Neumann(steps, 1e-3))
        gc.collect()
        counts.append(sum(1 for thing in gc.get_objects() if type(thing) is Tensor))
    assert abs(counts[2] - counts[1]) <= 2


def test_models_compiled_in_place_run_uncompiled() -> None:
    expected = hypergradient(problem(build("batch norm")), Neumann(1, 1e-2)).grads
    whole, part = build("batch norm"), build("batch norm")
    whole.compile(backend="eager")
    part.get_submodule("0").compile(backend="eager")
    for model in (whole, part):
        torch.testing.assert_close(hypergradient(problem(model), Neumann(1, 1e-2)).grads, expected)


def test_a_transformer_in_evaluation_mode_and_half_precision_parameters() -> None:
    pure = FunctionalModel(build("attention"), "eval")
    fast_path = torch.backends.mha.get_fastpath_enabled()
    kind = ForwardOverReverse()

    def loss(params: tuple[Tensor, ...], inputs: tuple[Tensor, ...]) -> Tensor:
        return F.cross_entropy(pure(dict(zip(pure.params, params, strict=True)), inputs[0]), LABELS)

    values = tuple(p.detach() for p in pure.params.values())
    slope, _ = kind.directional(loss, values, values, (IMAGES,))
    assert torch.isfinite(slope)
    assert torch.backends.mha.get_fastpath_enabled() == fast_path
    half = FunctionalModel(build("layer norm").bfloat16(), "eval")
    assert half(half.params, IMAGES.bfloat16()).dtype == torch.bfloat16


def test_an_unknown_mode_raises() -> None:
    with pytest.raises(ValueError, match="mode"):
        FunctionalModel(nn.Linear(1, 1), "test")  # type: ignore[arg-type]
