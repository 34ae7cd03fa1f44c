"""Images gathered over batches: the newest training images, and enough validation images."""

import pytest
import torch
from torch import Tensor

from madao.outer import gathering
from madao.outer.gathering import GatheredImages, ValidationBatches


def numbered(first: int, count: int, side: int = 2) -> tuple[Tensor, Tensor]:
    numbers = torch.arange(first, first + count)
    return (numbers / 100).reshape(-1, 1, 1, 1).expand(-1, 1, side, side), numbers


def test_the_newest_examples_are_taken_and_no_more_is_stored() -> None:
    gathered = GatheredImages(5)
    for first in range(0, 12, 3):
        gathered.add(numbered(first, 3))
    images, targets = gathered.take()
    assert targets.tolist() == [7, 8, 9, 10, 11]
    assert (100 * images[:, 0, 0, 0]).round().tolist() == [7, 8, 9, 10, 11]
    assert sum(len(batch[1]) for batch in gathered.state_dict()["batches"]) == 6


def test_batches_are_copied() -> None:
    gathered, batch = GatheredImages(4), (torch.zeros(4, 1, 2, 2), torch.zeros(4))
    gathered.add(batch)
    batch[0].fill_(1.0)
    assert gathered.take()[0].sum() == 0


def test_images_of_another_shape_begin_anew() -> None:
    gathered = GatheredImages(10)
    gathered.add(numbered(0, 3))
    gathered.add(numbered(3, 3, side=4))
    assert gathered.take()[1].tolist() == [3, 4, 5]


def test_large_images_are_fewer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gathering, "_MOST_BYTES", 6 * 16)
    gathered = GatheredImages(100)
    for first in range(0, 30, 3):
        gathered.add(numbered(first, 3))
    assert gathered.take()[1].tolist() == [24, 25, 26, 27, 28, 29]


def test_a_saved_buffer_is_restored() -> None:
    gathered = GatheredImages(5)
    gathered.add(numbered(0, 4))
    again = GatheredImages.restored(gathered.state_dict(), torch.device("cpu"))
    again.add(numbered(4, 3))
    assert again.take()[1].tolist() == [2, 3, 4, 5, 6]


@pytest.mark.parametrize(
    ("count", "expected"),
    [
        (None, [[0, 1, 2], [3, 4, 5], [6], [0, 1, 2]]),
        (2, [[0, 1, 2], [3, 4, 5], [6, 0], [3, 4, 5]]),
        (4, [[0, 1, 2, 3], [6, 0, 1, 2], [3, 4, 5, 6], [0, 1, 2, 3]]),
        (7, [[0, 1, 2, 3, 4, 5, 6]] * 3),
        (50, [[0, 1, 2, 3, 4, 5, 6]] * 3),
    ],
)
def test_validation_batches_are_gathered_over_the_loader(count: int | None, expected: list[list[int]]) -> None:
    loader = [numbered(0, 3), numbered(3, 3), numbered(6, 1)]
    batches = ValidationBatches()
    assert [batches.next(loader, count)[1].tolist() for _ in expected] == expected


def test_a_given_batch_is_taken_whole_and_an_empty_loader_refused() -> None:
    batches = ValidationBatches()
    assert batches.next(numbered(0, 3), 2)[1].tolist() == [0, 1, 2]
    with pytest.raises(ValueError, match="gave no batch"):
        batches.next(iter([]), 2)
    used = iter([numbered(0, 3)])
    assert batches.next(used)[1].tolist() == [0, 1, 2]
    with pytest.raises(ValueError, match="gave no batch"):
        batches.next(used)
