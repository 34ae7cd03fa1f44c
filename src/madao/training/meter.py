"""What learning the policy costs beside training: time and peak memory of outer steps and of the rest."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch

_MIB = 2**20


class Meter:
    """Measures an epoch.

    Args:
        device: Where training runs. On a GPU the memory is what torch holds there, that of CUDA graphs included, which
            never shrinks: what it was before the first outer step is what training takes by itself. On the CPU it is
            the most the whole process ever took, which cannot be told apart by step.
    """

    def __init__(self, device: torch.device) -> None:
        self._cuda = device if device.type == "cuda" else None
        self._outer_seconds = 0.0
        self._inner_peak = self._outer_peak = 0
        self.clear()  # what came before does not count

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

    def read(self) -> dict[str, float | None]:
        """Seconds in outer steps, and the peak memory in MiB without and within them; None where not known."""
        inner = self._inner_peak if self._outer_peak else self._peak()
        return {
            "outer_seconds": self._outer_seconds,
            "memory_mib": inner / _MIB if self._cuda is not None else _process_mib(),
            "outer_memory_mib": self._outer_peak / _MIB if self._outer_peak else None,
        }

    def clear(self) -> None:
        """Begin an epoch."""
        self._outer_seconds = 0.0
        if self._cuda is not None:
            torch.cuda.reset_peak_memory_stats(self._cuda)

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
