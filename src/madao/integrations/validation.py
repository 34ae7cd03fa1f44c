"""Validation batches for outer steps, out of the loader that a trainer validates with."""

import itertools
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    Sampler,
    SequentialSampler,
)


def outer_batches(
    loader: Iterable[Any], size: int | None, seed: int, start: int = 0, rank: int = 0, world: int = 1
) -> Iterator[Any]:
    """Batch after batch without end, beside the trainer's own validation and without disturbing it.

    A `DataLoader` of all of a data set is rebuilt in an order of its own: shuffled, since batches of one class only,
    as sorted files give them, would mislead the policy; and a function of `seed` and the batch's number, so that a
    resumed run goes on where it was. So is one whose parts a trainer has handed out to several processes: each takes
    its part of every batch. Any other loader is gone through as it is, again and again, from its start.

    Args:
        loader: What the trainer validates with.
        size: Images in a batch, of all processes. By default the loader's for each of them.
        seed: Which order.
        start: Number of the first batch.
        rank: Of this process.
        world: How many processes share a batch.
    """
    shuffled = _shuffled(loader, size, seed, start, rank, world)
    if shuffled is not None:
        return iter(shuffled)
    if size is not None:
        raise ValueError(
            "validation_images needs a DataLoader of all of a data set, in order or shuffled, to make other batches "
            f"of; this {type(loader).__name__} gives its own: leave validation_images away"
        )
    return _again_and_again(loader)


def _shuffled(
    loader: Iterable[Any], size: int | None, seed: int, start: int, rank: int, world: int
) -> "DataLoader[Any] | None":
    if not isinstance(loader, DataLoader) or isinstance(loader.dataset, IterableDataset):
        return None
    batches: Any = loader.batch_sampler
    if type(batches).__name__ == "BatchSamplerShard":  # accelerate's: every so many batches of what is inside
        batches = batches.batch_sampler
    # Any other sampler may stand for a part of the data set, the rest of which is trained on.
    if type(batches) is not BatchSampler:
        return None
    sampler: Any = batches.sampler
    if type(sampler) is DistributedSampler:
        whole: Any = sampler.dataset
        count = len(whole)
    elif isinstance(sampler, SequentialSampler | RandomSampler):
        count = len(sampler.data_source)
    else:
        return None
    if count < world:
        raise ValueError(_EMPTY if count == 0 else f"there are {count} validation images for {world} processes")
    wanted = min(max(size or world * batches.batch_size, world), count)
    return DataLoader(
        loader.dataset,
        batch_sampler=_Shuffled(count, wanted, seed, start, rank, world),
        collate_fn=loader.collate_fn,
        num_workers=loader.num_workers,
        pin_memory=loader.pin_memory,
        worker_init_fn=loader.worker_init_fn,
        multiprocessing_context=loader.multiprocessing_context,
        generator=torch.Generator().manual_seed(seed + start),  # the global one is the trainer's
    )


class _Shuffled(Sampler[list[int]]):
    """A process's part of batches of indices, from number `start` on; each pass over the data has its own order."""

    def __init__(self, count: int, size: int, seed: int, start: int, rank: int, world: int) -> None:
        self.count, self.size, self.seed, self.start = count, size, seed, start
        self.rank, self.world = rank, world

    def __iter__(self) -> Iterator[list[int]]:
        in_a_pass = self.count // self.size
        for number in itertools.count(self.start):
            generator = torch.Generator().manual_seed(self.seed + 1_000_003 * (number // in_a_pass))
            first = number % in_a_pass * self.size
            batch = torch.randperm(self.count, generator=generator)[first : first + self.size]
            own: list[int] = batch.tensor_split(self.world)[self.rank].tolist()
            yield own


_EMPTY = "the validation loader gave no batch; it is empty, or an iterator that has ended"


def _again_and_again(loader: Iterable[Any]) -> Iterator[Any]:
    while True:
        empty = True
        for batch in loader:
            empty = False
            yield batch
        if empty:
            raise ValueError(_EMPTY)
