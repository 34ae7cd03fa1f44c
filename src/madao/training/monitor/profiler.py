"""Time and peak memory of an epoch: outer steps, all other steps, and waiting for images."""

import collections
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TypeVar

import torch

_MIB = 2**20

Batch = TypeVar("Batch")


class Profiler:
    """A profiler of each epoch, also of a resumed one. It measures the wait for images where training `reads` them.

    On a GPU, memory is all that torch holds there. Inner and outer steps share the memory of CUDA graphs: the peak
    before the first outer step is the memory of training without a policy. On the CPU, memory is the peak of the whole
    process, of which the parts are not known.
    """

    def __init__(self, device: torch.device, reads: bool = False) -> None:
        self._cuda = device if device.type == "cuda" else None
        self._reads = reads
        self._seconds = self._waiting = 0.0
        self._since: float | None = None  # when the present part of the epoch began
        self._unseen = 0
        self._open: collections.deque[tuple[torch.cuda.Event, torch.cuda.Event]] = collections.deque()
        self._outer_seconds = 0.0
        self._inner_peak = self._outer_peak = 0
        self.clear()  # the memory peak begins here

    def start(self) -> None:
        """Start the clock, at the beginning of an epoch or at a saved state."""
        self._since = time.monotonic()

    @property
    def seconds(self) -> float:
        """The seconds of the epoch so far, in all its parts."""
        return self._seconds + (0.0 if self._since is None else time.monotonic() - self._since)

    def rate(self, images: int) -> float:
        """Return images per second of an epoch that has had `images` so far."""
        return (images - self._unseen) / max(self.seconds, 1e-9)

    @contextmanager
    def outer_step(self) -> Iterator[None]:
        """Measure the body of the `with` statement as an outer step."""
        if not self._outer_peak:
            self._inner_peak = self._peak()
        started = self._now()
        yield
        self._outer_seconds += self._now() - started
        self._outer_peak = self._peak()

    def awaited(self, batches: Iterator[Batch]) -> Iterator[Batch]:
        """Yield the same batches, and measure how long the device is idle until they come."""
        if not self._reads:
            return batches
        return self._awaited_on_cuda(batches) if self._cuda is not None else self._awaited(batches)

    def _awaited(self, batches: Iterator[Batch]) -> Iterator[Batch]:
        while True:
            began = time.monotonic()
            batch = next(batches, None)
            self._waiting += time.monotonic() - began
            if batch is None:
                return
            yield batch

    def _awaited_on_cuda(self, batches: Iterator[Batch]) -> Iterator[Batch]:
        # The host runs ahead: while it waits for a batch, the GPU may still compute the step before, and no time is
        # lost. So two events in the GPU's queue, before and after the host asks for a batch, read the clock of the GPU.
        # If the GPU is still at work when the host adds the second event, no time passes between the two. If its queue
        # is empty, it passes the first and stands still until the batch has come. The time between the events is the
        # cost of the batch: standing still, copying and decoding. Events are read once the GPU has passed them, so that
        # the host never waits for the GPU.
        stream = torch.cuda.current_stream(self._cuda)
        while True:
            began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            began.record(stream)
            batch = next(batches, None)
            ended.record(stream)
            self._open.append((began, ended))
            while self._open and self._open[0][1].query():
                self._close()
            if batch is None:
                return
            yield batch

    def _close(self) -> None:
        began, ended = self._open.popleft()
        self._waiting += began.elapsed_time(ended) / 1000

    def _close_all(self) -> None:
        while self._open:
            self._open[0][1].synchronize()
            self._close()

    def read(self) -> dict[str, float | None]:
        """Return seconds in outer steps, peak MiB without and within them, and seconds of waiting; None if unknown."""
        self._close_all()
        inner = self._inner_peak if self._outer_peak else self._peak()
        return {
            "outer_seconds": self._outer_seconds,
            "memory_mib": inner / _MIB if self._cuda is not None else _process_mib(),
            "outer_memory_mib": self._outer_peak / _MIB if self._outer_peak else None,
            "waiting_seconds": self._waiting if self._reads else None,
        }

    def clear(self) -> None:
        """Begin an epoch. Its clock starts with `start`."""
        self._seconds = self._outer_seconds = self._waiting = 0.0
        self._since, self._unseen = None, 0
        self._open.clear()
        if self._cuda is not None:
            torch.cuda.reset_peak_memory_stats(self._cuda)

    def state_dict(self) -> dict[str, float]:
        """Return the seconds of the epoch so far. Memory is not part of it: a new process begins at its own."""
        self._close_all()
        return {"seconds": self.seconds, "outer_seconds": self._outer_seconds, "waiting_seconds": self._waiting}

    def load_state_dict(self, state: dict[str, float]) -> None:
        """Restore a saved state."""
        self.clear()
        self._seconds, self._outer_seconds = state["seconds"], state["outer_seconds"]
        self._waiting = state["waiting_seconds"]

    def skip(self, images: int) -> None:
        """Exclude the first images of the epoch from the rate: their time is not known."""
        self.clear()
        self._unseen = images

    def _now(self) -> float:
        if self._cuda is not None:
            torch.cuda.synchronize(self._cuda)  # queued work belongs to the time before
        return time.monotonic()

    def _peak(self) -> int:
        return 0 if self._cuda is None else torch.cuda.max_memory_reserved(self._cuda)


def timing_row(seconds: float, rate: float, cost: Mapping[str, float | None]) -> dict[str, float | None]:
    """Return an epoch's row of timing.csv, with the rate of a model that never waits for images.

    `cost` are the numbers of `Profiler.read`; `waiting_seconds` is None where images are in memory.
    """
    waiting = cost["waiting_seconds"]
    model_rate = None if waiting is None or waiting >= seconds else rate * seconds / (seconds - waiting)
    return {"seconds": seconds, "images_per_second": rate, **cost, "model_images_per_second": model_rate}


def _process_mib() -> float | None:
    try:
        import resource
    except ImportError:  # not on Windows
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / _MIB if sys.platform == "darwin" else peak / 1024
