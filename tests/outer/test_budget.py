"""The plan of outer steps: within its budget, with few large steps, and around the values that users chose."""

import dataclasses
from typing import Any

import pytest

from madao.outer.budget import (
    FEWEST_STEPS,
    FREE_FLOPS,
    LARGEST_LR,
    LARGEST_STEP,
    REACH,
    SMALLEST_STEP,
    STEPS,
    Workload,
    plan_outer,
)

CIFAR = Workload(steps=21_000, warmup=4_200, batch_size=128, train_images=45_000, validation_images=5_000, flops=3e9)
DIGITS = Workload(steps=420, warmup=84, batch_size=128, train_images=899, validation_images=1_796, flops=3e6)
PHOTOS = Workload(steps=450, warmup=90, batch_size=32, train_images=500, validation_images=60, flops=1e10)


def test_large_data_gets_the_largest_steps_as_often_as_the_budget_allows() -> None:
    plan = plan_outer(0.1, CIFAR, {})
    assert (plan.train_batch_size, plan.batch_size) == (LARGEST_STEP, LARGEST_STEP // 2)
    assert plan.steps > STEPS
    assert plan.share <= 0.1
    assert plan.share == pytest.approx(0.1, rel=0.05)
    assert plan.lr * plan.steps == pytest.approx(REACH)
    assert plan_outer(0.2, CIFAR, {}).steps == pytest.approx(2 * plan.steps, rel=0.05)


def test_small_models_may_always_learn() -> None:
    plan = plan_outer(0.001, DIGITS, {})
    assert 0.8 * STEPS <= plan.steps <= STEPS
    assert plan.train_batch_size == DIGITS.train_images
    assert plan.share * DIGITS.steps * DIGITS.batch_size * DIGITS.flops < FREE_FLOPS


def test_a_smaller_budget_means_smaller_steps_and_then_fewer() -> None:
    plans = [plan_outer(budget, PHOTOS, {}) for budget in (9.0, 3.0, 1.0, 0.3, 0.19)]
    assert [plan.train_batch_size for plan in plans] == sorted((plan.train_batch_size for plan in plans), reverse=True)
    assert [plan.steps for plan in plans] == sorted((plan.steps for plan in plans), reverse=True)
    assert plans[-1].train_batch_size == SMALLEST_STEP
    assert plans[-1].steps < STEPS
    for plan, budget in zip(plans, (9.0, 3.0, 1.0, 0.3, 0.19), strict=True):
        assert plan.share <= budget
        assert plan.lr == min(LARGEST_LR, REACH / plan.steps)


def test_a_budget_below_the_least_pays_for_nothing_and_the_least_is_told() -> None:
    plan = plan_outer(0.1, PHOTOS, {})
    assert (plan.steps, plan.share) == (0, 0.0)
    assert plan.every > PHOTOS.steps
    enough = plan_outer(plan.needed * 1.001, PHOTOS, {})
    assert enough.steps == FEWEST_STEPS
    assert enough.share == pytest.approx(plan.needed)


def test_a_short_run_learns_at_every_step() -> None:
    plan = plan_outer(0.1, dataclasses.replace(DIGITS, steps=5, warmup=1), {})
    assert (plan.every, plan.steps, plan.lr) == (1, 4, LARGEST_LR)
    assert plan_outer(0.1, dataclasses.replace(DIGITS, steps=5, warmup=9), {}).steps == 0


@pytest.mark.parametrize(
    "known",
    [
        {"every": 7},
        {"lr": 0.01},
        {"batch_size": 5},
        {"train_batch_size": 300},
        {"curvature_batch_size": 9, "pathwise_batch_size": 11},
        {"every": 1, "train_batch_size": 2_000},
    ],
)
def test_given_values_stay(known: dict[str, Any]) -> None:
    for work in (CIFAR, DIGITS, PHOTOS):
        plan = plan_outer(0.3, work, known)
        assert {name: getattr(plan, name) for name in known} == known


def test_the_rest_follows_a_given_cadence_and_given_sizes() -> None:
    rare, often = (plan_outer(0.1, CIFAR, {"every": every}) for every in (400, 40))
    assert (rare.steps, often.steps) == (42, 420)
    assert rare.train_batch_size == LARGEST_STEP > often.train_batch_size
    assert often.share <= 0.1
    assert rare.lr == pytest.approx(10 * often.lr)
    small = plan_outer(0.1, CIFAR, {"train_batch_size": 256})
    assert small.steps > 3 * plan_outer(0.1, CIFAR, {}).steps


def test_dearer_kinds_of_outer_steps_are_counted() -> None:
    cheap = plan_outer(0.1, CIFAR, {})
    for change in ({"removed_cost": 30.0}, {"all_pathwise": True}):
        dear = plan_outer(0.1, dataclasses.replace(CIFAR, **change), {})
        assert dear.steps < 0.7 * cheap.steps
        assert dear.share == pytest.approx(0.1, rel=0.1)


def test_a_step_has_no_more_images_than_there_are() -> None:
    plan = plan_outer(1.0, dataclasses.replace(DIGITS, train_images=40, validation_images=10), {})
    assert (plan.train_batch_size, plan.batch_size) == (40, 10)
