"""The plan of a run: which settings it decides, what the user's choices change, and what is told before training."""

from pathlib import Path
from typing import Any

import pytest

from madao.config.train_config import AugmentConfig, OuterConfig
from madao.outer.budget import GUARD, LARGEST_LR
from madao.training.monitor.advice import describe_run
from madao.training.run.state import Run
from madao.training.splits import Splits
from tests.helpers.training import built, settings, trained


def planned(folder: Path, data: Splits | None = None, **outer: Any) -> Run:
    return built(settings(folder, outer=OuterConfig(**outer), epochs=20), data)


def test_everything_left_open_is_decided(tmp_path: Path) -> None:
    loop = planned(tmp_path).outer_loop
    assert loop is not None
    assert loop.plan is not None
    chosen, outer = loop.settings, loop.outer
    assert (chosen.every, chosen.train_batch_size, chosen.batch_size) == (1, 96, 30)
    assert (chosen.curvature_batch_size, chosen.pathwise_batch_size) == (24, 12)
    assert chosen.lr == loop.plan.lr <= LARGEST_LR
    assert outer.optimizer.param_groups[0]["lr"] == chosen.lr
    assert outer.optimizer.param_groups[0]["guard"] == GUARD
    assert (outer.every, outer.warmup) == (1, 12)
    assert loop.plan.steps == 48


def test_choices_stay_and_nothing_is_planned_without_a_budget(tmp_path: Path) -> None:
    loop = planned(tmp_path / "a", every=7, lr=0.5, batch_size=9, guard=0.0).outer_loop
    assert loop is not None
    found = loop.settings
    assert (found.every, found.lr, found.batch_size, found.guard, found.train_batch_size) == (7, 0.5, 9, 0.0, 96)
    loop = planned(tmp_path / "b", budget=0.0).outer_loop
    assert loop is not None
    assert loop.plan is None
    found = loop.settings
    assert (found.every, found.lr, found.guard) == (10, 0.03, 0.0)
    assert found.train_batch_size is found.batch_size is found.curvature_batch_size is None
    assert loop.outer.compute.pathwise_batch == 32


@pytest.mark.parametrize(
    ("outer", "augment"),
    [
        ({"optimizer": "rmsprop"}, {}),
        ({}, {"conditional_on": "image"}),
    ],
)
def test_the_guard_is_for_adam_and_parameters_of_a_policy(
    tmp_path: Path, outer: dict[str, Any], augment: dict[str, Any]
) -> None:
    config = settings(tmp_path, outer=OuterConfig(**outer), augment=AugmentConfig(**augment))
    loop = built(config).outer_loop
    assert loop is not None
    assert loop.settings.guard == 0


def test_a_model_in_training_mode_takes_all_images_pathwise(tmp_path: Path) -> None:
    loop = planned(tmp_path, model_mode="train").outer_loop
    assert loop is not None
    assert loop.outer.compute.pathwise_batch is None


def test_the_plan_is_told(tmp_path: Path) -> None:
    line = next(line for line in describe_run(planned(tmp_path)) if "at a time" in line)
    assert line.startswith("the policy learns every step from epoch 5 on, from 96 training and 30 validation images")
    assert "learning rate 0.25" in line
    assert "more than the budget of 10 %" in line


def test_a_budget_that_is_too_small_is_told_before_training_with_one_that_suffices(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("madao.outer.budget.FREE_FLOPS", 0.0)
    lines = "\n".join(describe_run(planned(tmp_path / "a")))
    assert "the policy learns in none, and will stay as it starts" in lines
    suffices = float(lines.split("`outer.budget=")[1].split("`")[0])
    epochs = int(lines.split("`epochs=")[1].split("`")[0])
    loop = planned(tmp_path / "b", budget=suffices).outer_loop
    assert loop is not None
    assert loop.plan is not None
    assert loop.plan.steps >= 12
    more = settings(tmp_path / "c", outer=OuterConfig(), epochs=epochs)
    loop = built(more).outer_loop
    assert loop is not None
    assert loop.plan is not None
    assert loop.plan.steps > 0


def test_a_run_that_cannot_pay_leaves_the_policy_as_it_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("madao.outer.budget.FREE_FLOPS", 0.0)
    run = trained(settings(tmp_path, outer=OuterConfig(), epochs=2))
    assert run.outer_loop is not None
    assert run.outer_loop.outer.updates == 0
