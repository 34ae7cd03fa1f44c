"""Outer steps of tasks whose targets depend on the draws: traced code against the reference, parts against all."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

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
from madao.models import SmallFCN
from madao.models.encoder import Encoder, split_norms
from madao.outer import PolicyOptimizer
from madao.outer.outer_step import OuterRequest
from madao.policy import BaseAugmentation, Draw, Policy
from madao.tasks import MoCo, Segmentation, Task
from tests.helpers.outer_steps import policy_optimizer

STANDARD = BaseAugmentation(padding=1, cutout=0, mean=(0.5,), std=(0.25,))
CASES: dict[str, dict[str, Any]] = {
    "relaxed, neumann": {"estimator": Relaxed(), "solver": Neumann(2, 0.01), "inner_mode": "train"},
    "influence, unaugmented": {"estimator": Influence(Unaugmented()), "solver": Identity(0.1)},
    "influence, deflated": {"estimator": Influence(LeaveOneOut()), "solver": Deflated(3), "pathwise_batch": 4},
    "influence, same loss": {"estimator": Influence(SameLoss()), "solver": Deflated(3), "pathwise_batch": 4},
    "influence, gauss-newton": {"estimator": Influence(LeaveOneOut()), "solver": GaussNewton(2, 0.1)},
}


def images(count: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (count, 1, 12, 12), generator=generator, dtype=torch.uint8)


def segmentation(**_: Any) -> tuple[nn.Module, Task]:
    return SmallFCN(3, 1, 4), Segmentation(3)


def moco(training: bool = False) -> tuple[nn.Module, Task]:
    layers = nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.AdaptiveAvgPool2d(3), nn.Flatten()
    encoder = Encoder(nn.Sequential(*layers), 36, 6)
    return encoder, MoCo(encoder, 6, STANDARD, 3, queue=20, temperature=0.3, training=training)


def split_moco(training: bool = False) -> tuple[nn.Module, Task]:
    """As on a GPU: channels last in memory, and BatchNorm over parts of a batch."""
    layers = nn.Conv2d(1, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU()
    encoder = Encoder(nn.Sequential(*layers, nn.AdaptiveAvgPool2d(3), nn.Flatten()), 36, 6)
    split_norms(encoder, 2).to(memory_format=torch.channels_last)
    return encoder, MoCo(encoder, 6, STANDARD, 3, queue=20, temperature=0.3, splits=2, training=training)


def given(task: Task, seed: int) -> tuple[Tensor, ...]:
    """Training images and targets before the policy, validation images and targets."""
    train, validation = images(8, seed), images(6, seed + 100)
    if isinstance(task, MoCo):
        return train, images(8, seed + 50), *task.outer(STANDARD, validation, validation, lambda: validation)
    return train, train[:, 0] // 86, validation, validation[:, 0] // 86


def build(make: Any, **settings: Any) -> tuple[PolicyOptimizer, Task]:
    torch.manual_seed(0)
    model, task = make(training=settings.get("inner_mode") == "train")
    soft_targets = {"views": task.views, "soft_targets": task.soft_targets}
    policy = Policy(seed=3)
    losses = {"loss": task.losses, "transform": STANDARD.normalise}
    return policy_optimizer(policy, model, **losses, **soft_targets, **settings), task


@pytest.mark.parametrize(
    ("make", "name"),
    [*((make, name) for make in (segmentation, moco) for name in CASES), (split_moco, "relaxed, neumann")],
)
def test_traced_steps_are_those_of_the_reference(make: Any, name: str) -> None:
    outer, task = build(make, **CASES[name])
    tensors, recent, traced = given(task, 1), None, Traced()
    if isinstance(outer.solver, Deflated):
        recent = outer.solver.prepare(None, FunctionalModel(outer.model).params, check=False)
        recent.rows.copy_(torch.cat([0.1 * parameter.detach().flatten() for parameter in outer.model.parameters()]))
    asked = OuterRequest(state=recent)
    for seed in (1, 2):
        for static, value in zip(tensors, given(task, seed), strict=True):
            static.copy_(value)
        task.after_step(torch.nn.functional.normalize(torch.randn(5, 6), dim=1))  # a graph has to see the new queue
        state = outer.policy.get_extra_state()
        expected = outer.reference(asked, tensors).grads
        outer.policy.set_extra_state(state)
        found = outer.reference.with_hvp(traced)(asked, tensors).grads
        for a, b in zip(found, expected, strict=True):
            assert torch.allclose(a, b, rtol=2e-3, atol=2e-5 * float(b.abs().max())), (name, seed)
            assert b.abs().max() > 0
    kept = len(traced._made)
    outer.reference.with_hvp(traced)(asked, tensors)
    assert len(traced._made) == kept


@pytest.mark.parametrize("make", [segmentation, moco])
def test_microbatches_and_parts_change_nothing_that_is_scored(make: Any) -> None:
    settings: dict[str, Any] = {"estimator": Influence(LeaveOneOut()), "solver": Identity(0.1)}
    found = []
    for more in ({}, {"microbatch": 3}, {"pathwise_batch": 4}):
        outer, task = build(make, **settings, **more)
        train, targets, *validation = given(task, 1)
        gradients, stats = outer.gradient((train, targets), (validation[0], validation[1]))
        assert stats.usable
        found.append([gradient.clone() for gradient in gradients])
    for place in range(3):
        torch.testing.assert_close(found[1][place], found[0][place], rtol=1e-3, atol=1e-6)
    for place in range(2):  # of the discrete choices
        torch.testing.assert_close(found[2][place], found[0][place], rtol=1e-3, atol=1e-6)
    assert not torch.allclose(found[2][2], found[0][2], rtol=1e-2)


def test_two_views_are_scored_for_both_of_their_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    """The score of an example is the sum of its views': log P of both draws."""
    outer, task = build(moco, estimator=Influence(LeaveOneOut()), solver=Identity(0.1))
    seen: list[Draw] = []
    effect = outer.policy.effect_log_prob

    def spied(draw: Draw, labels: Tensor) -> Tensor:
        seen.append(draw)
        return effect(draw, labels)

    monkeypatch.setattr(outer.policy, "effect_log_prob", spied)
    train, targets, *validation = given(task, 1)
    outer.gradient((train, targets), (validation[0], validation[1]))
    assert len(seen) == 2
    assert not torch.equal(seen[0].choice, seen[1].choice)


@pytest.mark.parametrize("make", [segmentation, moco])
def test_the_gradient_that_is_taken_out_is_that_of_another_draw_and_its_own_targets(make: Any) -> None:
    outer, task = build(make, estimator=Influence(LeaveOneOut()), solver=Deflated(3))
    tensors = given(task, 1)
    recent = Deflated(3).prepare(None, FunctionalModel(outer.model).params, check=False)
    found = outer.reference(OuterRequest(state=recent), tensors).carry
    assert found is not None
    again = Policy(seed=3)  # from the start again
    floats = tensors[0] / 255
    for _ in range(task.views):
        again.sample(floats)
    draws = [again.sample(floats) for _ in range(task.views)]
    outputs = outer.model.eval()(STANDARD.normalise(again.augment(floats, draws[0])))
    loss = task.losses(outputs, task.soft_targets(again, tensors[1], draws)).mean()
    expected = torch.autograd.grad(loss, list(outer.model.parameters()))
    flat = torch.cat([gradient.flatten() for gradient in expected])
    assert torch.nn.functional.cosine_similarity(found.float(), flat, 0) > 0.9999  # it has the length 1, in bfloat16
