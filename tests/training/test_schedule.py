"""Learning rates: closed forms, and torch's own schedulers at whole epochs."""

import itertools
import math
from typing import Any

import pytest
import torch
from torch.optim.lr_scheduler import CosineAnnealingWarmRestarts, LRScheduler, MultiStepLR

from madao.config.train_config import OptimizerConfig
from madao.training.schedule import cosine, learning_rate


def rates(epochs: int, **settings: Any) -> list[float]:
    """The rate at the start of each epoch, and at the end of the last."""
    config = OptimizerConfig(lr=0.4, **settings)
    return [learning_rate(config, epoch, epochs) for epoch in range(epochs + 1)]


def torch_rates(kind: type[LRScheduler], epochs: int, **settings: Any) -> list[float]:
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.4)
    scheduler = kind(optimizer, **settings)
    found = []
    for _ in range(epochs + 1):
        found.append(float(optimizer.param_groups[0]["lr"]))
        optimizer.step()
        scheduler.step()
    return found


@pytest.mark.parametrize(
    ("part", "expected"),
    [(0, 1), (1 / 4, (2 + math.sqrt(2)) / 4), (1 / 3, 3 / 4), (1 / 2, 1 / 2), (2 / 3, 1 / 4), (1, 0)],
)
def test_cosine_has_its_closed_form(part: float, expected: float) -> None:
    assert cosine(part) == pytest.approx(expected, abs=1e-15)
    config = OptimizerConfig(lr=0.4)
    assert learning_rate(config, 30 * part, 30) == pytest.approx(0.4 * expected, abs=1e-15)


def test_cosine_stays_at_its_ends_beyond_them() -> None:
    assert cosine(-0.1) == 1
    assert cosine(1.1) == 0
    assert learning_rate(OptimizerConfig(lr=0.4), 31, 30) == 0


def test_parts_of_an_epoch_count() -> None:
    config = OptimizerConfig(lr=0.4)
    found = [learning_rate(config, step / 7, 3) for step in range(22)]
    assert found == pytest.approx([0.2 * (1 + math.cos(math.pi * step / 21)) for step in range(22)], abs=1e-15)
    assert all(later < earlier for earlier, later in itertools.pairwise(found))


def test_warm_restarts_come_at_10_30_and_70() -> None:
    found = rates(150, restart=10, restart_factor=2)
    assert [epoch for epoch in range(150) if found[epoch] == 0.4] == [0, 10, 30, 70]
    assert [found[epoch] for epoch in (5, 20, 50, 110)] == pytest.approx([0.2] * 4)
    config = OptimizerConfig(lr=0.4, restart=10, restart_factor=2)
    for end in (10, 30, 70):
        assert learning_rate(config, end - 1e-6, 150) < 1e-10


@pytest.mark.parametrize(("restart", "factor"), [(10, 2), (10, 1), (1, 3), (200, 1)])
def test_warm_restarts_are_those_of_torch(restart: int, factor: int) -> None:
    expected = torch_rates(CosineAnnealingWarmRestarts, 100, T_0=restart, T_mult=factor)
    assert rates(100, restart=restart, restart_factor=factor) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("milestones", [[], [3], [3, 5, 9], [0, 10]])
def test_steps_are_those_of_torch(milestones: list[int]) -> None:
    found = rates(12, schedule="step", milestones=milestones)
    expected = torch_rates(MultiStepLR, 12, milestones=milestones)
    assert found == pytest.approx(expected, rel=1e-12)


def test_a_step_comes_at_its_milestone_and_not_before() -> None:
    config = OptimizerConfig(lr=0.4, schedule="step", milestones=[2.5, 4])
    for epoch, expected in [(0, 0.4), (2.5 - 1e-9, 0.4), (2.5, 0.04), (4 - 1e-9, 0.04), (4, 0.004), (6, 0.004)]:
        assert learning_rate(config, epoch, 6) == pytest.approx(expected, rel=1e-12)


def test_the_order_of_milestones_does_not_matter() -> None:
    assert rates(9, schedule="step", milestones=[6, 2]) == rates(9, schedule="step", milestones=[2, 6])


def test_constant_is_constant() -> None:
    assert rates(5, schedule="constant") == [0.4] * 6


@pytest.mark.parametrize("schedule", ["constant", "step", "cosine"])
def test_warm_up_is_linear_from_zero(schedule: Any) -> None:
    config = OptimizerConfig(lr=0.4, schedule=schedule, warmup=2)
    assert [learning_rate(config, epoch, 10) for epoch in (0, 0.5, 1, 1.5)] == pytest.approx([0, 0.1, 0.2, 0.3])
    assert learning_rate(config, 2 - 1e-9, 10) == pytest.approx(0.4)
    assert learning_rate(config, 2, 10) == 0.4


def test_after_warm_up_the_cosine_takes_the_rest() -> None:
    config = OptimizerConfig(lr=0.4, warmup=2)
    found = [learning_rate(config, epoch, 10) for epoch in (2, 4, 6, 8, 10)]
    assert found == pytest.approx([0.2 * (1 + math.cos(math.pi * part / 4)) for part in range(5)], abs=1e-15)


def test_after_warm_up_restarts_count_from_its_end() -> None:
    warm = OptimizerConfig(lr=0.4, warmup=2.5, restart=3, restart_factor=2)
    cold = OptimizerConfig(lr=0.4, restart=3, restart_factor=2)
    for epoch in (0, 1, 2.5, 3, 7, 9, 12):
        assert learning_rate(warm, epoch + 2.5, 20) == learning_rate(cold, epoch, 17.5)


def test_after_warm_up_milestones_count_from_the_start() -> None:
    assert rates(6, schedule="step", warmup=2, milestones=[4]) == pytest.approx([0, 0.2, 0.4, 0.4, 0.04, 0.04, 0.04])


def test_a_warm_up_as_long_as_the_run_ends_at_the_full_rate() -> None:
    assert rates(4, warmup=4) == pytest.approx([0, 0.1, 0.2, 0.3, 0.4])
