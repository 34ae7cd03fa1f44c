"""The policy's optimizer with a solution that is carried on, and what it asks of the loop around it."""

import io
import logging
from typing import Any

import pytest
import torch
from torch import Tensor

from madao import PolicyOptimizer
from madao.hypergrad import Amortized, Deflated, Identity, Status
from madao.training.outer import OuterStep
from tests.training.test_outer import TRAIN, VALIDATION, build, changed, snapshot


def run(outer: PolicyOptimizer, calls: int) -> list[OuterStep]:
    steps = [outer.step(TRAIN, VALIDATION) for _ in range(calls)]
    return [step for step in steps if step is not None]


def saved_and_loaded(state: dict[str, Any]) -> dict[str, Any]:
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    loaded: dict[str, Any] = torch.load(file, weights_only=True)
    return loaded


@pytest.mark.parametrize("solver", [Amortized(0.05), Deflated(3)])
def test_resuming_goes_on_exactly(solver: Any) -> None:
    def resumed(state: dict[str, Any]) -> tuple[PolicyOptimizer, list[OuterStep]]:
        outer = build(every=2, solver=solver)
        outer.load_state_dict(state)
        outer.policy.load_state_dict(first.policy.state_dict())
        return outer, run(outer, 7)

    whole = build(every=2, solver=solver)
    expected = run(whole, 14)
    first = build(every=2, solver=solver)
    run(first, 7)
    second, steps = resumed(saved_and_loaded(first.state_dict()))
    assert steps == expected[3:]
    assert (second.calls, second.updates, second.skipped) == (14, 7, 0)
    for a, b in zip(whole.policy.parameters(), second.policy.parameters(), strict=True):
        assert torch.equal(a, b)
    carried, other = whole.state_dict()["carried"], second.state_dict()["carried"]
    assert carried["owner"] == other["owner"] == [repr(solver), *dict(whole.model.named_parameters())]
    assert all(torch.equal(a, b) for a, b in zip(carried["tensors"], other["tensors"], strict=True))
    # Without it it would not: the equality above is worth something.
    _, forgetful = resumed(first.state_dict() | {"carried": None})
    assert forgetful[0].stats.q_norm != expected[3].stats.q_norm


def test_the_solution_is_carried_on_from_outer_step_to_outer_step() -> None:
    outer = build(every=2, solver=Amortized(0.05), check_every=0)
    assert outer.state_dict()["carried"] is None
    steps = run(outer, 8)
    assert [step.stats.products for step in steps] == [0, 1, 1, 1]
    assert steps[0].stats.q_norm == pytest.approx(0.05 * steps[0].stats.v_norm, rel=1e-5)
    length = torch.cat([value.flatten() for value in outer.state_dict()["carried"]["tensors"]]).norm()
    assert steps[-1].stats.q_norm == pytest.approx(float(length), rel=1e-5)


def test_other_solvers_carry_nothing() -> None:
    outer = build(solver=Identity(0.05))
    run(outer, 2)
    assert outer.state_dict()["carried"] is None


@pytest.mark.parametrize(("every", "warmup"), [(1, 0), (1, 3), (3, 0), (3, 3), (3, 4), (3, 5), (2, 5)])
def test_due_says_beforehand_what_step_does(every: int, warmup: int) -> None:
    outer = build(every=every, warmup=warmup, solver=Amortized(0.05), check_every=0)
    for call in range(1, 10):
        expected = call > warmup and call % every == 0
        assert outer.due() is outer.due() is expected
        assert (outer.step(TRAIN, VALIDATION) is not None) is expected


def test_a_diverging_step_leaves_the_policy_and_drops_the_solution(caplog: pytest.LogCaptureFixture) -> None:
    outer = build(solver=Amortized(1e4), check_every=0)
    run(outer, 1)  # the first is Identity: it solves nothing, so nothing can diverge
    assert outer.state_dict()["carried"] is not None
    before = snapshot(outer.policy)
    with caplog.at_level(logging.WARNING, "madao"):
        (step,) = run(outer, 1)
    assert step.stats.status is Status.DIVERGING
    assert not step.applied
    assert not changed(outer.policy, before)
    assert (outer.updates, outer.skipped) == (1, 1)
    assert "outer step at call 2 skipped (1 so far)" in caplog.text
    assert outer.state_dict()["carried"] is None
    (anew,) = run(outer, 1)
    assert anew.stats.products == 0
    assert anew.stats.q_norm == pytest.approx(1e4 * anew.stats.v_norm, rel=1e-5)


def test_each_transform_sees_its_own_images() -> None:
    both: list[Tensor] = []
    training: list[Tensor] = []

    def recording(seen: list[Tensor], images: Tensor) -> Tensor:
        seen.append(images.detach())
        return images

    outer = build(solver=Amortized(0.05), transform=lambda images: recording(both, images))
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


def test_a_train_transform_counts_in_the_training_loss_alone() -> None:
    def darkened(images: Tensor) -> Tensor:
        return 0.5 * images

    steps = []
    for transform, train_transform in ((None, None), (None, darkened), (darkened, None), (darkened, darkened)):
        step = build(solver=Amortized(0.05), transform=transform).step(TRAIN, VALIDATION, train_transform)
        assert step is not None
        steps.append(step.stats)
    neither, training, both, the_same = steps
    assert training.outer_loss == neither.outer_loss != both.outer_loss
    assert training.grad_norm != neither.grad_norm
    assert the_same == both
