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
    """A map from the indices of a batch to the loaded batch."""

    def __init__(self, load: Callable[[list[int]], Loaded]) -> None:
        self.load = load

    def __getitem__(self, indices: list[int]) -> Loaded | DataError:
        try:
            return self.load(indices)
        except DataError as error:
            return error  # returned, not raised: a DataLoader would wrap its one line into a traceback


def load_batches(
    load: Callable[[list[int]], Loaded], batches: Iterable[list[int]], workers: int = 0, pin_memory: bool = False
) -> Iterator[Loaded]:
    """Yield `load(indices)` for each batch. With workers, batches are read ahead of time.

    Args:
        load: The function that reads a batch, such as `images.load`.
        batches: The indices of each batch. May be endless.
        workers: Number of processes that read. 0 reads in this process.
        pin_memory: Whether to put results into page-locked memory, from which a GPU copies faster.
    """
    loader = DataLoader(
        _Batchwise(load),
        sampler=batches,
        batch_size=None,
        num_workers=workers,
        pin_memory=pin_memory,
        collate_fn=_identity,
        generator=torch.Generator(),  # otherwise the seeds of workers come from the global state
        worker_init_fn=_follow_parent,
    )
    for loaded in loader:
        if isinstance(loaded, DataError):
            raise loaded
        yield loaded


def _follow_parent(_: int) -> None:
    """Make a worker live exactly as long as its parent."""
    # Ctrl-C and schedulers signal all processes of a group, but a run needs its workers to stop in order.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    threading.Thread(target=_exit_after_parent, daemon=True).start()


def _exit_after_parent() -> None:
    """Exit when the parent has gone, even if it was killed. torch watches only the process that forked."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _identity(loaded: Any) -> Any:
    return loaded
