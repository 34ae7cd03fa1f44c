"""Validation batches for outer steps, out of the loader that a trainer validates with."""

import itertools
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, RandomSampler, Sampler, SequentialSampler


def outer_batches(loader: Iterable[Any], size: int | None, seed: int, start: int = 0) -> Iterator[Any]:
    """Batch after batch without end, beside the trainer's own validation and without disturbing it.

    A `DataLoader` of all of a data set is rebuilt in an order of its own: shuffled, since batches of one class only,
    as sorted files give them, would mislead the policy; and a function of `seed` and the batch's number, so that a
    resumed run goes on where it was. Any other loader is gone through as it is, again and again, from its start.

    Args:
        loader: What the trainer validates with.
        size: Images in a batch. By default the loader's.
        seed: Which order.
        start: Number of the first batch.
    """
    shuffled = _shuffled(loader, size, seed, start)
    if shuffled is not None:
        return iter(shuffled)
    if size is not None:
        raise ValueError(
            "validation_images needs a DataLoader of all of a data set, in order or shuffled, to make other batches "
            f"of; this {type(loader).__name__} gives its own: leave validation_images away"
        )
    return _again_and_again(loader)


def _shuffled(loader: Iterable[Any], size: int | None, seed: int, start: int) -> "DataLoader[Any] | None":
    if not isinstance(loader, DataLoader) or isinstance(loader.dataset, IterableDataset):
        return None
    batches = loader.batch_sampler
    # Any other sampler may stand for a part of the data set, the rest of which is trained on.
    if type(batches) is not BatchSampler or not isinstance(batches.sampler, SequentialSampler | RandomSampler):
        return None
    count = len(batches.sampler.data_source)
    if count == 0:
        raise ValueError(_EMPTY)
    return DataLoader(
        loader.dataset,
        batch_sampler=_Shuffled(count, min(size or batches.batch_size, count), seed, start),
        collate_fn=loader.collate_fn,
        num_workers=loader.num_workers,
        pin_memory=loader.pin_memory,
        worker_init_fn=loader.worker_init_fn,
        multiprocessing_context=loader.multiprocessing_context,
        generator=torch.Generator().manual_seed(seed + start),  # the global one is the trainer's
    )


class _Shuffled(Sampler[list[int]]):
    """Batches of indices from number `start` on; each pass over the data has an order of its own."""

    def __init__(self, count: int, size: int, seed: int, start: int) -> None:
        self.count, self.size, self.seed, self.start = count, size, seed, start

    def __iter__(self) -> Iterator[list[int]]:
        in_a_pass = self.count // self.size
        for number in itertools.count(self.start):
            generator = torch.Generator().manual_seed(self.seed + 1_000_003 * (number // in_a_pass))
            first = number % in_a_pass * self.size
            order: list[int] = torch.randperm(self.count, generator=generator)[first : first + self.size].tolist()
            yield order


_EMPTY = "the validation loader gave no batch; it is empty, or an iterator that has ended"


def _again_and_again(loader: Iterable[Any]) -> Iterator[Any]:
    while True:
        empty = True
        for batch in loader:
            empty = False
            yield batch
        if empty:
            raise ValueError(_EMPTY)
