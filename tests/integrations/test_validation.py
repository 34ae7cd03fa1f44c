import itertools
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, SubsetRandomSampler, TensorDataset

from madao.integrations.validation import outer_batches

DATA = TensorDataset(torch.arange(10))


def numbers(loader: Any, count: int, size: int | None = None, seed: int = 0, start: int = 0) -> list[list[int]]:
    return [batch[0].tolist() for batch in itertools.islice(outer_batches(loader, size, seed, start), count)]


def test_each_pass_has_every_image_once_in_an_order_of_its_own() -> None:
    taken = numbers(DataLoader(DATA, 5), 4)
    passes = [taken[0] + taken[1], taken[2] + taken[3]]
    assert [sorted(order) for order in passes] == [list(range(10))] * 2
    assert passes[0] != passes[1]
    assert list(range(10)) not in passes


def test_a_batch_depends_on_its_number_alone() -> None:
    loader = DataLoader(DATA, 3)
    taken = numbers(loader, 7)
    assert numbers(loader, 3, start=4) == taken[4:]
    assert numbers(loader, 7, seed=1) != taken


def test_neither_the_loader_nor_the_global_random_state_is_touched() -> None:
    loader = DataLoader(DATA, 5, shuffle=True)
    state = torch.get_rng_state()
    numbers(loader, 5)
    assert torch.equal(torch.get_rng_state(), state)


def test_the_size_of_a_batch_can_be_another() -> None:
    assert [len(batch) for batch in numbers(DataLoader(DATA, 2), 3, size=4)] == [4, 4, 4]
    assert len(numbers(DataLoader(DATA, 2), 1, size=64)[0]) == 10


def test_a_sampler_of_a_part_is_respected() -> None:
    loader = DataLoader(DATA, 2, sampler=SubsetRandomSampler([1, 3, 5]))
    assert {number for batch in numbers(loader, 8) for number in batch} == {1, 3, 5}
    with pytest.raises(ValueError, match="validation_images"):
        outer_batches(loader, 3, 0)


def test_any_loader_begins_anew_when_it_ends() -> None:
    batches = [(torch.tensor([0]),), (torch.tensor([1]),)]
    assert numbers(batches, 3) == [[0], [1], [0]]


@pytest.mark.parametrize("loader", [[], DataLoader(TensorDataset(torch.arange(0)), 2)])
def test_an_empty_loader_is_an_error(loader: Any) -> None:
    with pytest.raises(ValueError, match="batch"):
        numbers(loader, 1)


def test_workers_serve_the_same_batches() -> None:
    assert numbers(DataLoader(DATA, 3, num_workers=1), 3, start=2) == numbers(DataLoader(DATA, 3), 3, start=2)
