"""Batches follow from seed, epoch and position alone."""

import itertools
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor

from madao.data import Batches, ImageFiles, Images, InMemoryImages
from madao.errors import DataError

CPU = torch.device("cpu")
Pair = tuple[Tensor, Tensor]
Damage = Callable[[Sequence[Path]], None]


@pytest.fixture(params=["pixels", "files", "workers"])
def setting(request: pytest.FixtureRequest, files: ImageFiles) -> tuple[Images, int]:
    """The same images in memory, from files, and from files by two workers."""
    return files.decode_all()[0] if request.param == "pixels" else files, 2 * (request.param == "workers")


def same(ones: Sequence[Pair], others: Sequence[Pair]) -> bool:
    return len(ones) == len(others) and all(
        torch.equal(one, other)
        for pair, twin in zip(ones, others, strict=True)
        for one, other in zip(pair, twin, strict=True)
    )


def test_an_epoch_is_its_order(setting: tuple[Images, int], files: ImageFiles) -> None:
    images, workers = setting
    batches = Batches(images, 5, CPU, seed=1, workers=workers)
    assert len(batches) == 4
    for number in (0, 1):
        order = batches.order(number)
        assert sorted(order.tolist()) == list(range(23))
        epoch = list(batches.epoch(number))
        assert [len(labels) for _, labels in epoch] == [5] * 4
        assert torch.equal(torch.cat([labels for _, labels in epoch]), files.labels[order[:20]])
        pixels = torch.cat([pixels for pixels, _ in epoch])
        assert pixels.dtype == torch.uint8
        assert torch.equal(pixels, files.load(order[:20].tolist())[0])
    assert files.skipped == set()


def test_it_resumes_anywhere(setting: tuple[Images, int]) -> None:
    images, workers = setting

    def fresh() -> Batches:
        return Batches(images, 5, CPU, seed=1, workers=workers)

    whole = [list(fresh().epoch(number)) for number in range(3)]
    assert same(list(fresh().epoch(1, start=2)), whole[1][2:])
    assert list(fresh().epoch(1, start=4)) == []
    everything = list(itertools.chain(*whole))
    for start in (0, 3, 4, 6):
        assert same(list(itertools.islice(fresh().stream(start), 12 - start)), everything[start:])


def test_no_global_randomness(setting: tuple[Images, int]) -> None:
    images, workers = setting
    torch.manual_seed(3)
    state = torch.get_rng_state()
    batches = Batches(images, 5, CPU, workers=workers)
    first = list(itertools.islice(batches.stream(), 6))
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(4)
    assert same(list(itertools.islice(batches.stream(), 6)), first)


def test_orders_differ_by_seed_and_epoch(files: ImageFiles) -> None:
    orders = {tuple(Batches(files, 5, CPU, seed).order(number).tolist()) for seed in range(3) for number in range(3)}
    assert len(orders) == 9
    still = Batches(files, 5, CPU, shuffle=False)
    assert still.order(7).tolist() == list(range(23))


def test_the_rest_and_small_sets(setting: tuple[Images, int]) -> None:
    images, workers = setting
    rest = Batches(images, 5, CPU, shuffle=False, drop_last=False, workers=workers)
    assert len(rest) == 5
    assert [len(labels) for _, labels in rest.epoch(0)] == [5, 5, 5, 5, 3]
    assert [len(labels) for _, labels in itertools.islice(rest.stream(3), 3)] == [5, 3, 5]
    for drop_last in (True, False):
        small = Batches(images, 100, CPU, drop_last=drop_last, workers=workers)
        assert len(small) == 1
        assert [len(labels) for _, labels in small.epoch(0)] == [23]
    exact = Batches(images, 23, CPU, drop_last=False, workers=workers)
    assert len(exact) == len(list(exact.epoch(0))) == 1


@pytest.mark.parametrize("workers", [0, 2])
def test_unreadable_files(files: ImageFiles, damage: Damage, workers: int) -> None:
    damage([files.paths[3], files.paths[10]])
    with pytest.raises(DataError, match=r"^cannot read [^\n]*\.png[^\n]*$"):  # one line, from a worker too
        list(Batches(files, 5, CPU, workers=workers).epoch(0))
    skipping = ImageFiles(files.paths, files.labels, 8, on_error="skip")
    batches = Batches(skipping, 5, CPU, shuffle=False, drop_last=False, workers=workers)
    epoch = list(batches.epoch(0))
    assert [len(labels) for _, labels in epoch] == [4, 5, 4, 5, 3]
    assert skipping.skipped == {3, 10}
    for images, labels in epoch:
        assert torch.equal(images[:, 0, 0, 0] // 10 % 3, labels)


def test_a_batch_of_which_nothing_can_be_read(files: ImageFiles, damage: Damage) -> None:
    damage(files.paths[20:])
    skipping = ImageFiles(files.paths, files.labels, 8, on_error="skip")
    with pytest.raises(DataError, match="none of the 3 images of a batch could be read; check"):
        list(Batches(skipping, 5, CPU, shuffle=False, drop_last=False).epoch(0))
    part = skipping.subset(torch.arange(21))
    assert len(list(Batches(part, 5, CPU, shuffle=False, drop_last=False).epoch(0))) == 4
    assert part.skipped == {20}


def test_images_in_memory_are_moved_once(files: ImageFiles) -> None:
    class NeverLoaded(InMemoryImages):
        def load(self, indices: Sequence[int]) -> tuple[Tensor, list[int]]:
            raise AssertionError("batches are gathered on the device")

    images = files.decode_all()[0]
    epoch = list(Batches(NeverLoaded(images.images, images.labels), 5, torch.device("meta")).epoch(0))
    assert [pair[0].device.type for pair in epoch] == [pair[1].device.type for pair in epoch] == ["meta"] * 4


def test_mistakes(files: ImageFiles) -> None:
    with pytest.raises(DataError, match="batch_size must be at least 1, got 0"):
        Batches(files, 0, CPU)
    with pytest.raises(DataError, match="there are no images to batch"):
        Batches(files.subset(torch.zeros(0, dtype=torch.int64)), 5, CPU)
