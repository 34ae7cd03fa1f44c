"""Outer steps of traced code, and recorded as CUDA graphs, against those in Python."""

import copy
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from madao.device.precision import full_precision
from madao.distributed.group import Shard
from madao.hypergrad import (
    Deflated,
    FunctionalModel,
    GaussNewton,
    Identity,
    Influence,
    LeaveOneOut,
    Neumann,
    Relaxed,
    SameLoss,
    Traced,
    Unaugmented,
)
from madao.hypergrad.autodiff.functional_model import Mode
from madao.hypergrad.autodiff.traced import UntraceableError
from madao.outer.cuda_graph import CudaGraphRunner
from madao.outer.example_losses import augmented_examples
from madao.outer.outer_step import OuterRequest
from madao.outer.policy_optimizer import PolicyOptimizer
from madao.policy import BaseAugmentation, Policy

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
needs_gpu = pytest.mark.skipif(DEVICE == "cpu", reason="needs a GPU")
STANDARD = BaseAugmentation(padding=1, cutout=4, mean=(0.5,) * 3, std=(0.25,) * 3)
CASES: dict[str, dict[str, Any]] = {
    "relaxed, neumann": {"estimator": Relaxed(), "solver": Neumann(3, 0.01)},
    "influence, identity": {"estimator": Influence(Unaugmented()), "solver": Identity(0.1)},
    "influence, deflated": {
        "estimator": Influence(LeaveOneOut()),
        "solver": Deflated(3),
        "inner_mode": "eval",
        "check_every": 0,
    },
    "influence, same loss": {
        "estimator": Influence(SameLoss()),
        "solver": Deflated(3),
        "inner_mode": "eval",
        "check_every": 0,
        "pathwise_batch": 4,
    },
    "influence, gauss-newton": {
        "estimator": Influence(LeaveOneOut()),
        "solver": GaussNewton(3, 0.1),
        "inner_mode": "eval",
        "check_every": 0,
        "curvature_batch": 6,
    },
    "influence, same loss, in parts": {
        "estimator": Influence(SameLoss()),
        "solver": Deflated(3),
        "inner_mode": "eval",
        "check_every": 0,
        "pathwise_batch": 4,
        "microbatch": 2,
    },
    "microbatches": {"estimator": Relaxed(), "solver": Neumann(2, 0.01), "microbatch": 5},
    "curvature of a part": {"estimator": Relaxed(), "solver": Neumann(2, 0.1), "curvature_batch": 4},
}


@pytest.fixture(autouse=True)
def without_tf32() -> Iterator[None]:
    """Two ways to one gradient round alike."""
    with full_precision():
        yield


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 6, 3, padding=1, bias=False),
        nn.BatchNorm2d(6),
        nn.ReLU(),
        nn.Conv2d(6, 8, 3, 2),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(8 * 5 * 5, 4),
    ).to(DEVICE)


def build(model: nn.Module | None = None, **settings: Any) -> PolicyOptimizer:
    policy = Policy(seed=3).to(DEVICE)
    model = network() if model is None else model
    # So that a derivative which is zero but for rounding does not become a step like all others.
    optimizer = torch.optim.RMSprop(policy.parameters(), lr=1e-2, eps=1e-4)
    settings = {"every": 1, "weight_decay": 1e-3, **settings}
    return PolicyOptimizer(policy, model, optimizer=optimizer, transform=STANDARD.normalise, **settings)


def batch(seed: int, count: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    images = torch.randint(0, 256, (count, 3, 12, 12), generator=generator, dtype=torch.uint8)
    return images.to(DEVICE), torch.randint(0, 4, (count,), generator=generator).to(DEVICE)


def given(seed: int) -> tuple[tuple[Tensor, ...], tuple[Tensor, Tensor]]:
    """A training batch with the places of its holes, and a validation batch."""
    images, labels = batch(seed, 8)
    draw = STANDARD.sample(images)
    return (images, labels, draw.hole_y, draw.hole_x), batch(seed + 100, 6)


@pytest.mark.parametrize("name", CASES)
def test_traced_steps_are_those_of_the_reference(name: str) -> None:
    outer = build(**CASES[name])
    train, validation = given(1)
    recent = None
    if isinstance(outer.solver, Deflated):
        recent = outer.solver.prepare(None, FunctionalModel(outer.model).params, check=False)
        recent.rows.copy_(torch.cat([0.1 * parameter.detach().flatten() for parameter in outer.model.parameters()]))
    tensors = (*train, *validation)
    asked = OuterRequest(STANDARD.after_policy, 2, True, recent)
    traced = Traced()
    for new in (train, given(2)[0]):
        for static, value in zip(train, new, strict=True):
            static.copy_(value)
        state = outer.policy.get_extra_state()
        expected = outer._estimated(None, asked, tensors)
        outer.policy.set_extra_state(state)
        found = outer._estimated(traced, asked, tensors)
        for a, b in zip(found.grads, expected.grads, strict=True):
            assert torch.allclose(a, b, rtol=1e-3, atol=1e-5 * float(b.abs().max())), name
        assert found.read().term_norms == pytest.approx(expected.read().term_norms, rel=1e-3)
        assert (found.read().residual or 0) == pytest.approx(expected.read().residual or 0, rel=1e-3)
        assert (found.read().residual is None) == isinstance(outer.solver, Deflated)
    kept = len(traced._made)
    outer._estimated(traced, asked, tensors)
    assert len(traced._made) == kept


@needs_gpu
@pytest.mark.parametrize("name", CASES)
def test_recorded_steps_learn_as_the_reference_does(name: str) -> None:
    said: list[str] = []
    plain, recorded = build(**{"check_every": 2, **CASES[name]}), build(**{"check_every": 2, **CASES[name]})
    recorded.record(said.append)
    for seed in range(12):
        train, validation = given(seed)
        steps = [outer.step(train, validation, STANDARD.after_policy) for outer in (plain, recorded)]
        assert steps[0] is not None
        assert steps[1] is not None
        assert steps[1].applied
        assert steps[1].stats.outer_loss == pytest.approx(steps[0].stats.outer_loss, rel=1e-3)
        assert steps[1].stats.grad_norm == pytest.approx(steps[0].stats.grad_norm, rel=2e-2)
        for a, b in zip(plain.policy.parameters(), recorded.policy.parameters(), strict=True):
            assert torch.allclose(a, b, atol=2e-2)
            b.data.copy_(a)  # a draw may hang on the last bit
        for outer in (plain, recorded):  # the weights move, and both see it
            with torch.no_grad():
                for parameter in outer.model.parameters():
                    parameter.mul_(0.99)
    assert not said
    for a in recorded.policy.parameters():
        assert not torch.allclose(a, a.detach().flatten()[0].expand_as(a))


@needs_gpu
def test_what_cannot_be_recorded_runs_as_it_did_and_says_so_once() -> None:
    said: list[str] = []
    model = nn.Sequential(network(), nn.Dropout(0.3))
    plain, recorded = build(copy.deepcopy(model), inner_mode="train"), build(model, inner_mode="train")
    recorded.record(said.append)
    for seed in range(6):
        train, validation = given(seed)
        for outer in (plain, recorded):
            outer.step(train, validation, STANDARD.after_policy)
    assert len(said) == 1
    assert "outer steps run without a CUDA graph" in said[0]
    assert "random numbers" in said[0]
    for a, b in zip(plain.policy.parameters(), recorded.policy.parameters(), strict=True):
        assert torch.allclose(a, b, atol=1e-2)


class Stops(nn.Module):
    def forward(self, values: Tensor) -> Tensor:
        return values * values.detach().sigmoid()


def test_traced_code_is_compared_with_the_reference_first() -> None:
    train, validation = given(1)
    asked, tensors = OuterRequest(STANDARD.after_policy, 2, False), (*train, *validation)
    sound = build(estimator=Relaxed(), solver=Neumann(2, 0.1))
    before = sound.policy.get_extra_state()["generators"]
    sound._check_traced(asked, tensors)
    after = sound.policy.get_extra_state()["generators"]
    assert all(torch.equal(after[name], state) for name, state in before.items())
    model = network()
    model.insert(3, Stops())  # type: ignore[operator]
    with pytest.raises(UntraceableError, match=r"another gradient \(off by .*%\): it stops gradients"):
        build(model, estimator=Relaxed(), solver=Neumann(2, 0.1))._check_traced(asked, tensors)


@pytest.mark.parametrize("scale", [0.1, None])
def test_traced_products_of_gauss_newton_are_compared_too(monkeypatch: pytest.MonkeyPatch, scale: float | None) -> None:
    train, validation = given(1)
    asked, tensors = OuterRequest(STANDARD.after_policy, 2, False), (*train, *validation)
    outer = build(solver=GaussNewton(10, 0.01, scale))
    outer._check_traced(asked, tensors)
    assert outer.solver == GaussNewton(10, 0.01, scale)
    products = Traced.gauss_newton

    def wrong(self: Traced, *arguments: Any) -> Any:
        product = products(self, *arguments)
        return lambda direction: tuple(part * (1 + number % 3) for number, part in enumerate(product(direction)))

    monkeypatch.setattr(Traced, "gauss_newton", wrong)
    with pytest.raises(UntraceableError, match="another gradient"):
        outer._check_traced(asked, tensors)


def test_traced_scores_are_compared_too(monkeypatch: pytest.MonkeyPatch) -> None:
    train, validation = given(1)
    asked, tensors = OuterRequest(STANDARD.after_policy, 2, False), (*train, *validation)
    outer = build(estimator=Influence(SameLoss()), solver=Identity(0.1), inner_mode="eval", pathwise_batch=128)
    outer._check_traced(asked, tensors)
    assert outer.pathwise_batch == 128
    slopes = Traced.slopes

    def wrong(self: Traced, *arguments: Any) -> tuple[Tensor, Tensor]:
        value, slope = slopes(self, *arguments)
        return value, -slope

    monkeypatch.setattr(Traced, "slopes", wrong)
    with pytest.raises(UntraceableError, match="another gradient"):
        outer._check_traced(asked, tensors)
    assert outer.pathwise_batch == 128


@pytest.mark.parametrize(
    ("name", "recorded"),
    [
        ("influence, same loss, in parts", True),
        ("microbatches", False),
        ("influence, gauss-newton", True),
        ("relaxed, neumann", True),
    ],
)
def test_parts_are_recorded_where_nothing_is_kept_of_them(name: str, recorded: bool) -> None:
    outer = build(**CASES[name])
    outer.record(print)
    assert isinstance(outer._estimate, CudaGraphRunner) == recorded


def test_traced_is_asked_for_by_record() -> None:
    with pytest.raises(ValueError, match="call record"):
        build(hvp=Traced())


def test_losses_that_compute_the_same_are_equal() -> None:
    outer = build()

    def first(outer: PolicyOptimizer, mode: Mode = "train") -> Any:
        return outer._passes().terms(mode, augmented_examples(0, None), Shard(0, 4, 4))[0].loss

    assert first(outer) == first(outer)
    assert hash(first(outer)) == hash(first(outer))
    assert first(outer) != first(outer, "eval")
    assert first(outer) != first(build(network()))
    assert first(outer) != first(build(outer.model, loss=F.mse_loss))
    assert first(outer) != first(build(outer.model, autocast=torch.bfloat16))
