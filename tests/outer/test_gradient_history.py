"""What the policy's optimizer remembers from outer step to outer step, and what it asks of the loop around it."""

import io
import logging
from typing import Any

import pytest
import torch
from torch import Tensor

from madao import PolicyOptimizer
from madao.hypergrad import (
    Deflated,
    GaussNewton,
    Identity,
    Influence,
    LeaveOneOut,
    Solution,
    Status,
    System,
    Unaugmented,
)
from madao.hypergrad.estimators.baselines import Batch
from madao.hypergrad.pytree import Vector
from madao.outer.outer_step import OuterStep
from tests.outer.test_policy_optimizer import TRAIN, VALIDATION, build, changed, snapshot


def run(outer: PolicyOptimizer, calls: int) -> list[OuterStep]:
    steps = [outer.step(TRAIN, VALIDATION) for _ in range(calls)]
    return [step for step in steps if step is not None]


def saved_and_loaded(state: dict[str, Any]) -> dict[str, Any]:
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    loaded: dict[str, Any] = torch.load(file, weights_only=True)
    return loaded


@pytest.mark.parametrize("memory", [1, 2, 3, 16])
def test_resuming_goes_on_exactly(memory: int) -> None:
    def resumed(state: dict[str, Any]) -> tuple[PolicyOptimizer, list[OuterStep]]:
        outer = build(every=2, solver=Deflated(memory), weight_decay=0.1)
        outer.load_state_dict(state)
        outer.policy.load_state_dict(first.policy.state_dict())
        return outer, run(outer, 7)

    whole = build(every=2, solver=Deflated(memory), weight_decay=0.1)
    expected = run(whole, 14)
    first = build(every=2, solver=Deflated(memory), weight_decay=0.1)
    run(first, 7)
    saved = saved_and_loaded(first.state_dict())
    second, steps = resumed(saved)
    assert steps == expected[3:]
    assert (second.calls, second.updates, second.skipped) == (14, 7, 0)
    for a, b in zip(whole.policy.parameters(), second.policy.parameters(), strict=True):
        assert torch.equal(a, b)
    recent, other = whole.state_dict()["recent"], second.state_dict()["recent"]
    assert recent["owner"] == other["owner"] == [repr(Deflated(memory)), *dict(whole.model.named_parameters())]
    assert torch.equal(recent["rows"], other["rows"])
    assert not recent["rows"].requires_grad  # or it would hold on to the graph of every step
    assert recent["oldest"] == other["oldest"] == (7 % (memory - 1) if memory > 1 else 0)
    if memory > 1:  # without it it would not: the equality above is worth something
        _, forgetful = resumed(saved | {"recent": None})
        assert forgetful[0].stats.q_norm != expected[3].stats.q_norm


def test_gradients_are_remembered_from_outer_step_to_outer_step() -> None:
    """As the solver itself remembers them, but for their order."""
    outer = build(every=2, solver=Deflated(4))
    assert outer.state_dict()["recent"] is None
    expected: Tensor | None = None
    for _ in range(5):
        found = outer._estimate

        def seen(asked: Any, tensors: Any, found: Any = found) -> Any:
            nonlocal expected
            result = found(asked, tensors)
            rows = [result.carry[None], *([] if expected is None else [expected])]
            expected = torch.cat(rows)[:3]
            return result

        outer._estimate = seen
        run(outer, 2)
        outer._estimate = found
    assert expected is not None
    rows = outer.state_dict()["recent"]["rows"]
    assert {tuple(row.tolist()) for row in rows} == {tuple(row.tolist()) for row in expected}
    assert len({tuple(row.tolist()) for row in rows}) == 3


def test_other_solvers_remember_nothing() -> None:
    outer = build(solver=Deflated(3))
    run(outer, 2)
    assert outer.state_dict()["recent"] is not None
    outer.solver = Identity(0.05)
    run(outer, 2)
    assert outer.state_dict()["recent"] is None


def test_a_gradient_is_taken_without_an_update() -> None:
    outer, other = build(), build()
    before = snapshot(outer.policy)
    gradients, stats = outer.gradient(TRAIN, VALIDATION)
    assert not changed(outer.policy, before)
    assert (outer.calls, outer.updates) == (0, 0)
    assert stats == run(other, 1)[0].stats
    assert [gradient.shape for gradient in gradients] == [parameter.shape for parameter in outer.policy.parameters()]


def test_gradients_of_other_parameters_are_forgotten() -> None:
    outer = build(solver=Deflated(3))
    run(outer, 3)
    size = outer.state_dict()["recent"]["rows"].shape[1]
    next(outer.model.parameters()).requires_grad_(False)
    run(outer, 1)
    rows = outer.state_dict()["recent"]["rows"]
    assert rows.shape == (2, size - next(outer.model.parameters()).numel())
    assert rows[0].any()
    assert not rows[1].any()


@pytest.mark.parametrize(("every", "warmup"), [(1, 0), (1, 3), (3, 0), (3, 3), (3, 4), (3, 5), (2, 5)])
def test_due_says_beforehand_what_step_does(every: int, warmup: int) -> None:
    outer = build(every=every, warmup=warmup, solver=Deflated(3), check_every=0)
    for call in range(1, 10):
        expected = call > warmup and call % every == 0
        assert outer.due() is outer.due() is expected
        assert (outer.step(TRAIN, VALIDATION) is not None) is expected


def test_a_step_that_is_not_finite_leaves_the_policy_and_is_not_remembered(caplog: pytest.LogCaptureFixture) -> None:
    outer = build(solver=Deflated(3), check_every=0)
    run(outer, 1)
    before, rows = snapshot(outer.policy), outer.state_dict()["recent"]["rows"].clone()
    with caplog.at_level(logging.WARNING, "madao"):
        step = outer.step(TRAIN, VALIDATION, train_transform=lambda images: images * float("nan"))
    assert step is not None
    assert step.stats.status is Status.NON_FINITE
    assert not step.applied
    assert not changed(outer.policy, before)
    assert (outer.updates, outer.skipped) == (1, 1)
    assert "outer step at call 2 skipped (1 so far)" in caplog.text
    assert torch.equal(outer.state_dict()["recent"]["rows"], rows)
    assert run(outer, 1)[0].applied


def test_each_transform_sees_its_own_images() -> None:
    both: list[Tensor] = []
    training: list[Tensor] = []

    def recording(seen: list[Tensor], images: Tensor) -> Tensor:
        seen.append(images.detach())
        return images

    estimator = Influence(Unaugmented())  # which looks at images as they are too
    outer = build(solver=Identity(0.05), estimator=estimator, transform=lambda images: recording(both, images))
    outer.step(TRAIN, VALIDATION, train_transform=lambda images: recording(training, images))
    assert len(both) == 1
    assert torch.equal(both[0], VALIDATION[0])
    augmented, plain = training
    assert torch.equal(plain, TRAIN[0])
    assert augmented.shape == plain.shape
    assert not torch.equal(augmented, plain)
    both.clear()
    outer.step(TRAIN, VALIDATION)  # it was for that call alone
    assert [len(images) for images in both] == [24, 24, 16]
    assert len(training) == 2


def test_a_baseline_made_of_one_of_ours_may_look_at_images_as_they_are() -> None:
    class Mixed(LeaveOneOut):
        def __call__(self, batch: Batch) -> Tensor:
            assert batch.plain_influence is not None
            return 0.5 * (super().__call__(batch) + batch.plain_influence())

    step = build(solver=Identity(0.05), estimator=Influence(Mixed())).step(TRAIN, VALIDATION)
    assert step is not None
    assert step.applied


def test_a_train_transform_counts_in_the_training_loss_alone() -> None:
    def darkened(images: Tensor) -> Tensor:
        return 0.5 * images

    steps = []
    for transform, train_transform in ((None, None), (None, darkened), (darkened, None), (darkened, darkened)):
        step = build(solver=Identity(0.05), transform=transform).step(TRAIN, VALIDATION, train_transform)
        assert step is not None
        steps.append(step.stats)
    neither, training, both, the_same = steps
    assert training.outer_loss == neither.outer_loss != both.outer_loss
    assert training.grad_norm != neither.grad_norm
    assert the_same == both


@pytest.mark.parametrize("count", [None, 5])
def test_the_gradient_taken_out_is_of_another_draw_for_the_first_images(count: int | None) -> None:
    outer = build(solver=Deflated(2), curvature_batch=count, weight_decay=0.1, inner_mode="eval")
    again = build().policy
    images, labels = TRAIN
    shade = torch.linspace(0.5, 1.0, len(images))[:, None, None, None]
    outer.step((*TRAIN, shade), VALIDATION, train_transform=lambda augmented, shade: augmented * shade)
    again.sample(images, relaxed=True)
    model = outer.model.eval()
    augmented = again(images[:count]) * shade[:count]
    loss = torch.nn.functional.cross_entropy(model(augmented), labels[:count])
    parameters = list(model.parameters())
    gradients = torch.autograd.grad(loss, parameters)
    flat = torch.cat([(g + 0.1 * p.detach()).flatten() for g, p in zip(gradients, parameters, strict=True)])
    found = outer.state_dict()["recent"]["rows"][0].float()
    torch.testing.assert_close(found, flat / flat.norm(), rtol=0.01, atol=1e-4)


@pytest.mark.parametrize("count", [None, 5])
def test_the_gauss_newton_matrix_is_of_another_draw_for_the_first_images(count: int | None) -> None:
    seen: list[tuple[Vector, Vector]] = []

    class Spied(GaussNewton):
        def solve(self, system: System, state: None = None) -> Solution:
            seen.append((system.v, system.gauss_newton(system.v)))
            return super().solve(system)

    outer = build(solver=Spied(2), curvature_batch=count, weight_decay=0.1, inner_mode="eval")
    again = build().policy
    images, _ = TRAIN
    outer.step(TRAIN, VALIDATION)
    again.sample(images, relaxed=True)
    model, augmented = outer.model.eval(), again(images[:count])
    names = [name for name, _ in model.named_parameters()]

    def outputs(*params: Tensor) -> Tensor:
        found: Tensor = torch.func.functional_call(model, dict(zip(names, params, strict=True)), (augmented,))
        return found

    params = tuple(parameter.detach() for parameter in model.parameters())
    ((v, product),) = seen
    logits, moved = torch.func.jvp(outputs, params, v)[:2]
    chance = logits.softmax(1)
    curved = chance * moved - chance * (chance * moved).sum(1, keepdim=True)
    back = torch.func.vjp(outputs, *params)[1](curved / len(augmented))
    for found, expected, direction in zip(product, back, v, strict=True):
        torch.testing.assert_close(found, expected + 0.1 * direction, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("microbatch", [None, 5])
def test_magnitudes_may_be_derived_from_the_first_images_alone(microbatch: int | None) -> None:
    """The others are scored all the same."""

    def gradients(count: int, **settings: Any) -> tuple[Tensor, ...]:
        outer = build(solver=Identity(1.0), inner_mode="eval", **settings)
        sample = outer.policy.sample

        def same(images: Tensor, **how: Any) -> Any:
            everybody = TRAIN[0][:1].expand(24, -1, -1, -1)
            return sample(everybody, torch.Generator().manual_seed(5), **how)[: len(images)]

        setattr(outer.policy, "sample", same)  # noqa: B010
        found, _ = outer.gradient((TRAIN[0][:count], TRAIN[1][:count]), VALIDATION)
        return tuple(gradient.clone() for gradient in found)

    whole, few = gradients(24), gradients(7)
    selection, application, magnitude = gradients(24, pathwise_batch=7, microbatch=microbatch)
    torch.testing.assert_close(selection, whole[0], rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(application, whole[1], rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(magnitude, few[2], rtol=1e-4, atol=1e-6)
    assert not torch.allclose(whole[2], few[2], rtol=1e-2)
    for a, b in zip(gradients(24, pathwise_batch=100), whole, strict=True):
        assert torch.equal(a, b)
