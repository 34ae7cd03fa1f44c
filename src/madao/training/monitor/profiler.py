"""What an epoch costs: time and peak memory of outer steps and of the rest, and how long the model waits for images."""

import collections
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeVar

import torch

_MIB = 2**20

Batch = TypeVar("Batch")


class Profiler:
    """Measures an epoch, in as many parts as interruptions cut it into.

    Args:
        device: Where training runs. On a GPU the memory is what torch holds there, that of CUDA graphs included, which
            inner and outer steps share: what it was before the first outer step is what training takes by itself. On
            the CPU it is the most the whole process ever took, which cannot be told apart by step.
        reads: Whether images are read while training, so that it may have to wait for them.
    """

    def __init__(self, device: torch.device, reads: bool = False) -> None:
        self._cuda = device if device.type == "cuda" else None
        self._reads = reads
        self._seconds = self._waiting = 0.0
        self._since: float | None = None  # when the part that is now going on began
        self._unseen = 0
        self._open: collections.deque[tuple[torch.cuda.Event, torch.cuda.Event]] = collections.deque()
        self._outer_seconds = 0.0
        self._inner_peak = self._outer_peak = 0
        self.clear()  # what came before does not count

    def start(self) -> None:
        """Let time count: from the epoch's beginning, or from where a saved state left off."""
        self._since = time.monotonic()

    @property
    def seconds(self) -> float:
        """How long the epoch has taken, all its parts together."""
        return self._seconds + (0.0 if self._since is None else time.monotonic() - self._since)

    def rate(self, images: int) -> float:
        """Images per second, where the epoch has had so many."""
        return (images - self._unseen) / max(self.seconds, 1e-9)

    @contextmanager
    def outer(self, due: bool) -> Iterator[None]:
        """Around what is an outer step where `due`."""
        if not due:
            yield
            return
        if not self._outer_peak:
            self._inner_peak = self._peak()
        started = self._now()
        yield
        self._outer_seconds += self._now() - started
        self._outer_peak = self._peak()

    def awaited(self, batches: Iterator[Batch]) -> Iterator[Batch]:
        """The same batches; the time in which the device has nothing to do but wait for them is taken."""
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
        # The host runs ahead: while it waits for a batch the GPU may still be at work on the step before, and nothing
        # is lost. So the GPU's own clock is read, by two events in its queue, before and after the host asks. Where it
        # is still at work when the second is put in, it passes both at once; where it ran dry it passes the first and
        # stands still until the batch is there. What lies between is what the batch took of its time: standing still,
        # copying, decoding. Events are read when it has passed them, so the host never waits for it.
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
        """Seconds in outer steps, peak memory in MiB without and within them, seconds of waiting; None: not known."""
        self._close_all()
        inner = self._inner_peak if self._outer_peak else self._peak()
        return {
            "outer_seconds": self._outer_seconds,
            "memory_mib": inner / _MIB if self._cuda is not None else _process_mib(),
            "outer_memory_mib": self._outer_peak / _MIB if self._outer_peak else None,
            "waiting_seconds": self._waiting if self._reads else None,
        }

    def clear(self) -> None:
        """Begin an epoch, whose time counts from `start` on."""
        self._seconds = self._outer_seconds = self._waiting = 0.0
        self._since, self._unseen = None, 0
        self._open.clear()
        if self._cuda is not None:
            torch.cuda.reset_peak_memory_stats(self._cuda)

    def state_dict(self) -> dict[str, float]:
        """The epoch's seconds so far; memory is that of a process, and begins anew with it."""
        self._close_all()
        return {"seconds": self.seconds, "outer_seconds": self._outer_seconds, "waiting_seconds": self._waiting}

    def load_state_dict(self, state: dict[str, float] | None, images: int) -> None:
        """Go on from a saved state.

        Args:
            state: None where it was not saved, as before there were such states: what came before is not measured.
            images: How many the epoch had by then.
        """
        self.clear()
        if state is None:
            self._unseen = images
            return
        self._seconds, self._outer_seconds = state["seconds"], state["outer_seconds"]
        self._waiting = state["waiting_seconds"]

    def _now(self) -> float:
        if self._cuda is not None:
            torch.cuda.synchronize(self._cuda)  # what was queued before belongs to what came before
        return time.monotonic()

    def _peak(self) -> int:
        """The most memory since the epoch began."""
        return 0 if self._cuda is None else torch.cuda.max_memory_reserved(self._cuda)


def _process_mib() -> float | None:
    try:
        import resource
    except ImportError:  # not on Windows
        return None
    import sys

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / _MIB if sys.platform == "darwin" else peak / 1024
