"""Outer steps without settings in the loops of other libraries."""

from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

import madao
from madao.integrations.loop_adapter import LoopAdapter
from madao.outer.budget import LARGEST_STEP
from tests.helpers.outer_steps import VALIDATION, network


def train(adapter: LoopAdapter, steps: int, accumulate: int = 1) -> list[tuple[int, int]]:
    """The numbers of training and validation images of each outer step."""
    assert adapter.outer is not None
    taken, original = [], adapter.outer.update

    def watch(batch: Any, validation: Any, *rest: Any) -> Any:
        taken.append((len(batch[0]), len(validation[0])))
        return original(batch, validation, *rest)

    adapter.outer.update = watch  # type: ignore[assignment, method-assign]
    loader = DataLoader(TensorDataset(*VALIDATION), 4)
    for _ in range(steps):
        for _ in range(accumulate):
            adapter.augment((torch.rand(4, 1, 8, 8), torch.tensor([0, 1, 2, 0])))
            adapter.keep()
        adapter.step(lambda: loader)
    return taken


def test_images_are_gathered_over_optimizer_steps() -> None:
    adapter = LoopAdapter(madao.Policy(), 0, 1, None, None, {})
    adapter.start(network(), total_steps=300)
    assert adapter.asks_for_total_steps
    taken = train(adapter, 300, accumulate=2)
    assert adapter.outer is not None
    assert adapter.outer.schedule is not None
    assert adapter.outer.warmup == 60
    assert adapter.outer.schedule.train_images == LARGEST_STEP
    assert len(taken) > 10
    assert taken[-1] == (LARGEST_STEP, 16), "all validation images, though a batch has 4"


def test_chosen_numbers_stay() -> None:
    adapter = LoopAdapter(madao.Policy(), 0, 1, 24, 8, {"warmup": 0})
    adapter.start(network(), total_steps=40)
    taken = train(adapter, 40)
    assert set(taken[6:]) == {(24, 8)}


@pytest.mark.parametrize("settings", [{"every": 3}, {"total_steps": 9}])
def test_the_number_of_steps_is_asked_for_only_where_it_matters(settings: dict[str, Any]) -> None:
    assert not LoopAdapter(madao.Policy(), 0, 1, None, None, settings).asks_for_total_steps


def test_a_loader_with_its_own_batches_keeps_their_size() -> None:
    adapter = LoopAdapter(madao.Policy(), 0, 1, 8, None, {"warmup": 0})
    adapter.start(network(), total_steps=6)
    assert adapter.outer is not None
    own = [(VALIDATION[0][:5], VALIDATION[1][:5])]
    for _ in range(6):
        adapter.augment((torch.rand(4, 1, 8, 8), torch.tensor([0, 1, 2, 0])))
        adapter.keep()
        adapter.step(lambda: own)
    assert adapter.outer.updates > 0
