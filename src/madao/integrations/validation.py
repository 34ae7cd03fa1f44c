"""Validation batches for outer steps, from the loader that a trainer validates with."""

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
    loader: Iterable[Any],
    size: int | None,
    seed: int,
    start: int = 0,
    rank: int = 0,
    world: int = 1,
    required: bool = True,
) -> Iterator[Any]:
    """Yield batches without end and without disturbing the validation of the trainer.

    A `DataLoader` of a whole data set is rebuilt and shuffled: batches of a single class, as sorted files make them,
    would mislead the policy. The order is a function of `seed` and of the number of the batch, so that a resumed run
    continues with the same batches. If the trainer has divided the loader among several processes, each process takes
    its part of every batch. Any other loader is iterated over unchanged, and restarted when it ends.

    Args:
        loader: The loader that the trainer validates with.
        size: Images in a batch, of all processes together. By default the loader's batch size for each process.
        seed: The seed of the order.
        start: The number of the first batch.
        rank: The rank of this process.
        world: The number of processes that share a batch.
        required: Whether another loader is refused if `size` is given. Otherwise it keeps its own size.
    """
    shuffled = _shuffled(loader, size, seed, start, rank, world)
    if shuffled is not None:
        return iter(shuffled)
    if size is not None and required:
        raise ValueError(
            "validation_images needs a DataLoader of a whole data set, in order or shuffled; this "
            f"{type(loader).__name__} makes its own batches: leave out validation_images"
        )
    return _again_and_again(loader)


def _shuffled(
    loader: Iterable[Any], size: int | None, seed: int, start: int, rank: int, world: int
) -> "DataLoader[Any] | None":
    if not isinstance(loader, DataLoader) or isinstance(loader.dataset, IterableDataset):
        return None
    batches: Any = loader.batch_sampler
    if type(batches).__name__ == "BatchSamplerShard":  # of accelerate: every n-th batch of the sampler inside
        batches = batches.batch_sampler
    # Any other sampler may select a part of the data set, while the rest is trained on.
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
        generator=torch.Generator().manual_seed(seed + start),  # the global generator is left to the trainer
    )


class _Shuffled(Sampler[list[int]]):
    """The part of one process of shuffled batches of indices, from batch `start` on. Each epoch has its own order."""

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


_EMPTY = "the validation loader gave no batch: it is empty, or an iterator that has ended"


def _again_and_again(loader: Iterable[Any]) -> Iterator[Any]:
    while True:
        empty = True
        for batch in loader:
            empty = False
            yield batch
        if empty:
            raise ValueError(_EMPTY)
