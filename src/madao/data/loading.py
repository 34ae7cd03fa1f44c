"""Reading batches of images in worker processes."""

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Generic, TypeVar

import torch
from torch.utils.data import DataLoader, Dataset

from madao.errors import DataError

Loaded = TypeVar("Loaded")


class _Batchwise(Dataset[Any], Generic[Loaded]):
    """Whole batches, for a DataLoader that is to make none of its own."""

    def __init__(self, load: Callable[[list[int]], Loaded]) -> None:
        self.load = load

    def __getitem__(self, indices: list[int]) -> Loaded | DataError:
        try:
            return self.load(indices)
        except DataError as error:
            return error  # as a value: raised here, its one line would reach the caller inside a traceback's text


def load_batches(
    load: Callable[[list[int]], Loaded], batches: Iterable[list[int]], workers: int = 0, pin_memory: bool = False
) -> Iterator[Loaded]:
    """`load` of one list of indices after another, ahead of time where there are workers.

    Args:
        load: What reads a batch, `images.load` say.
        batches: The indices of each batch. May be endless.
        workers: How many processes read; 0: this one.
        pin_memory: Whether the result lies in page-locked memory, from which a GPU copies faster.
    """
    loader = DataLoader(
        _Batchwise(load),
        sampler=batches,
        batch_size=None,
        num_workers=workers,
        pin_memory=pin_memory,
        collate_fn=_as_it_is,
        generator=torch.Generator(),  # else it draws the workers' seeds from the global state
        worker_init_fn=_belong_to_the_parent,
    )
    for loaded in loader:
        if isinstance(loaded, DataError):
            raise loaded
        yield loaded


def _belong_to_the_parent(_: int) -> None:
    """Live as long as the process that reads, no longer and no shorter."""
    # Ctrl-C and schedulers signal every process of a group; a run that wants to stop in order needs its workers.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    threading.Thread(target=_end_with_the_parent, daemon=True).start()


def _end_with_the_parent() -> None:
    """End once it is gone, be it killed. torch looks at who started a worker, which may be a server of forks."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _as_it_is(loaded: Any) -> Any:
    return loaded
