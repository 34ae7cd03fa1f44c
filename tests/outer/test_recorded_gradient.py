"""Outer steps of traced code, and recorded as CUDA graphs, against the reference."""

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
from madao.hypergrad.autodiff.traced import UntraceableError
from madao.outer import PolicyOptimizer
from madao.outer.cuda_graph import CudaGraphRunner
from madao.outer.example_losses import Microbatches, augmented_examples
from madao.outer.gradient_check import check_traced
from madao.outer.outer_step import OuterRequest
from madao.outer.recorded_gradient import TracedGradient
from madao.policy import BaseAugmentation, Policy
from tests.helpers.outer_steps import policy_optimizer

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
needs_gpu = pytest.mark.skipif(DEVICE == "cpu", reason="needs a GPU")
STANDARD = BaseAugmentation(padding=1, cutout=4, mean=(0.5,) * 3, std=(0.25,) * 3)
CASES: dict[str, dict[str, Any]] = {
    "relaxed, neumann": {"estimator": Relaxed(), "solver": Neumann(3, 0.01)},
    "influence, identity": {"estimator": Influence(Unaugmented()), "solver": Identity(0.1)},
    "influence, deflated": {"estimator": Influence(LeaveOneOut()), "solver": Deflated(3)},
    "influence, same loss": {"estimator": Influence(SameLoss()), "solver": Deflated(3), "pathwise_batch": 4},
    "influence, gauss-newton": {"solver": GaussNewton(3, 0.1), "curvature_batch": 6},
    "influence, same loss, in parts": {
        "estimator": Influence(SameLoss()),
        "solver": Deflated(3),
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
    # eps, so that a derivative that is zero but for rounding does not become a step like all others.
    optimizer = torch.optim.RMSprop(policy.parameters(), lr=1e-2, eps=1e-4)
    settings = {"weight_decay": 1e-3, "transform": STANDARD.normalise, "optimizer": optimizer, **settings}
    return policy_optimizer(policy, network() if model is None else model, **settings)


def batch(seed: int, count: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    images = torch.randint(0, 256, (count, 3, 12, 12), generator=generator, dtype=torch.uint8)
    return images.to(DEVICE), torch.randint(0, 4, (count,), generator=generator).to(DEVICE)


def given(seed: int) -> tuple[tuple[Tensor, ...], tuple[Tensor, Tensor]]:
    """A training batch with the places of its holes, and a validation batch."""
    images, labels = batch(seed, 8)
    draw = STANDARD.sample(images)
    return (images, labels, draw.hole_y, draw.hole_x), batch(seed + 100, 6)


def request(**settings: Any) -> OuterRequest:
    return OuterRequest(STANDARD.after_policy, 2, **settings)


@pytest.mark.parametrize("name", CASES)
def test_traced_steps_have_the_gradient_of_the_reference(name: str) -> None:
    outer = build(**CASES[name])
    train, validation = given(1)
    state = outer.solver.prepare(None, FunctionalModel(outer.model).params, check=False)
    if isinstance(outer.solver, Deflated):
        state.rows.copy_(torch.cat([0.1 * parameter.detach().flatten() for parameter in outer.model.parameters()]))
    tensors, asked, tracer = (*train, *validation), request(check=True, state=state), Traced()
    traced = outer.reference.with_hvp(tracer)
    for new in (train, given(2)[0]):
        for static, value in zip(train, new, strict=True):
            static.copy_(value)
        before = outer.policy.get_extra_state()
        expected = outer.reference(asked, tensors)
        outer.policy.set_extra_state(before)
        found = traced(asked, tensors)
        for a, b in zip(found.grads, expected.grads, strict=True):
            assert torch.allclose(a, b, rtol=1e-3, atol=1e-5 * float(b.abs().max())), name
        assert found.read().term_norms == pytest.approx(expected.read().term_norms, rel=1e-3)
        assert (found.read().residual or 0) == pytest.approx(expected.read().residual or 0, rel=1e-3)
        assert (found.read().residual is None) == isinstance(outer.solver, Deflated)
    kept = len(tracer._made)
    traced(asked, tensors)
    assert len(tracer._made) == kept, "nothing is traced again"


@needs_gpu
@pytest.mark.parametrize("name", CASES)
def test_recorded_steps_learn_as_the_reference_does(name: str) -> None:
    said: list[str] = []
    plain, recorded = build(**{"check_every": 2, **CASES[name]}), build(**{"check_every": 2, **CASES[name]})
    recorded.record(said.append)
    for seed in range(12):
        train, validation = given(seed)
        steps = [outer.update(train, validation, STANDARD.after_policy) for outer in (plain, recorded)]
        assert steps[1].applied
        assert steps[1].stats.outer_loss == pytest.approx(steps[0].stats.outer_loss, rel=1e-3)
        assert steps[1].stats.grad_norm == pytest.approx(steps[0].stats.grad_norm, rel=2e-2)
        for a, b in zip(plain.policy.parameters(), recorded.policy.parameters(), strict=True):
            assert torch.allclose(a, b, atol=2e-2)
            b.data.copy_(a)  # a draw may depend on the last bit
        for outer in (plain, recorded):  # the weights move, and both see it
            with torch.no_grad():
                for parameter in outer.model.parameters():
                    parameter.mul_(0.99)
    assert not said
    for a in recorded.policy.parameters():
        assert not torch.allclose(a, a.detach().flatten()[0].expand_as(a))


@needs_gpu
def test_a_step_that_cannot_be_recorded_runs_without_a_graph_and_says_so_once() -> None:
    said: list[str] = []
    model = nn.Sequential(network(), nn.Dropout(0.3))
    plain, recorded = build(copy.deepcopy(model), inner_mode="train"), build(model, inner_mode="train")
    recorded.record(said.append)
    for seed in range(6):
        train, validation = given(seed)
        for outer in (plain, recorded):
            outer.update(train, validation, STANDARD.after_policy)
    assert len(said) == 1
    assert "random numbers" in said[0]
    for a, b in zip(plain.policy.parameters(), recorded.policy.parameters(), strict=True):
        assert torch.allclose(a, b, atol=1e-2)


class Stops(nn.Module):
    def forward(self, values: Tensor) -> Tensor:
        return values * values.detach().sigmoid()


def tensors() -> tuple[Tensor, ...]:
    train, validation = given(1)
    return (*train, *validation)


def test_traced_code_is_compared_with_the_reference_first() -> None:
    settings: dict[str, Any] = {"estimator": Relaxed(), "solver": Neumann(2, 0.1)}
    sound, model = build(**settings), network()
    before = sound.policy.get_extra_state()["generators"]
    check_traced(sound.reference, request(), tensors())
    after = sound.policy.get_extra_state()["generators"]
    assert all(torch.equal(after[name], state) for name, state in before.items())
    model.insert(3, Stops())  # type: ignore[operator]
    broken = build(model, **settings)
    state = broken.policy.get_extra_state()["generators"]
    with pytest.raises(UntraceableError, match=r"off by .*%"):
        TracedGradient(broken.reference, compile=False, compare=True)(request(), tensors())
    after = broken.policy.get_extra_state()["generators"]
    assert all(torch.equal(after[name], value) for name, value in state.items())
    unchecked = TracedGradient(broken.reference, compile=False, compare=False)
    assert unchecked(request(), tensors()).read().usable


def test_the_comparison_is_made_once() -> None:
    outer = build(estimator=Relaxed(), solver=Neumann(2, 0.1))
    traced = TracedGradient(outer.reference, compile=False, compare=True)
    traced(request(), tensors())
    # From now on another reference goes unnoticed.
    traced.reference = build(network().insert(3, Stops()), estimator=Relaxed(), solver=Neumann(2, 0.1)).reference  # type: ignore[operator]
    assert traced(request(), tensors()).read().usable


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("gauss_newton", {"solver": GaussNewton(10, 0.01, 0.1)}),
        ("gauss_newton", {"solver": GaussNewton(10, 0.01, None)}),
        ("slopes", {"estimator": Influence(SameLoss()), "solver": Identity(0.1), "pathwise_batch": 128}),
    ],
)
def test_every_kind_of_traced_derivative_is_compared(
    monkeypatch: pytest.MonkeyPatch, name: str, settings: dict[str, Any]
) -> None:
    outer = build(**settings)
    check_traced(outer.reference, request(), tensors())
    original = getattr(Traced, name)

    def wrong(self: Traced, *arguments: Any) -> Any:
        found = original(self, *arguments)
        if name == "slopes":
            return found[0], -found[1]
        return lambda direction: tuple(part * (1 + number % 3) for number, part in enumerate(found(direction)))

    monkeypatch.setattr(Traced, name, wrong)
    with pytest.raises(UntraceableError):
        check_traced(outer.reference, request(), tensors())


def test_the_comparison_takes_fewer_images_and_steps_in_single_precision() -> None:
    outer = build(solver=GaussNewton(10, 0.01, 0.1), pathwise_batch=128, autocast=torch.bfloat16)
    small = outer.reference.for_comparison(8).builder
    assert (small.compute.pathwise_batch, small.compute.autocast) == (4, None)
    assert small.solver == GaussNewton(2, 0.01, 0.1)
    assert (outer.compute.pathwise_batch, outer.solver) == (128, GaussNewton(10, 0.01, 0.1))
    assert build().reference.for_comparison(8).builder.compute.pathwise_batch is None


@pytest.mark.parametrize(
    ("name", "recorded"),
    [
        ("influence, same loss, in parts", True),
        ("microbatches", False),
        ("influence, gauss-newton", True),
        ("relaxed, neumann", True),
    ],
)
def test_microbatches_are_recorded_unless_the_solver_keeps_memory_for_each(name: str, recorded: bool) -> None:
    outer = build(**CASES[name])
    outer.record(print)
    assert isinstance(outer._estimate, CudaGraphRunner) == recorded


def test_requests_that_compute_the_same_are_equal() -> None:
    """A graph is recorded for each request that differs from all others."""
    outer = build(solver=Deflated(3))
    params = FunctionalModel(outer.model).params
    state, other = (outer.solver.prepare(None, params, check=False) for _ in range(2))
    assert request(state=state, seed=1) == request(state=state, seed=2)
    assert hash(request(state=state, seed=1)) == hash(request(state=state, seed=2))
    assert request(state=state) != request(state=other)
    assert request(check=True) != request()
    assert request(state=3) != request(state=2)


def test_losses_that_compute_the_same_are_equal() -> None:
    model = network()

    def first(mode: Any = "train", model: nn.Module = model, loss: Any = F.cross_entropy, autocast: Any = None) -> Any:
        passes = Microbatches(loss, model, None, autocast, 0)
        return passes.terms(mode, augmented_examples(0, None), Shard(0, 4, 4))[0].loss

    assert first() == first()
    assert hash(first()) == hash(first())
    for different in (first("eval"), first(model=network()), first(loss=F.mse_loss), first(autocast=torch.bfloat16)):
        assert first() != different
