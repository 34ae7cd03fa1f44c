"""The time that a run has taken and will still take, for people. No result depends on it."""

import time
from collections.abc import Callable

_MINUTE, _HOUR, _DAY = 60, 3600, 86400


class TimeLeft:
    """A clock that estimates the rest of a run from the steps so far.

    Args:
        total: The number of steps of the run.
        now: Returns the present time in seconds, which never goes back.
    """

    def __init__(self, total: int, now: Callable[[], float] = time.monotonic) -> None:
        self.total, self._now = total, now
        self.start(0)

    def start(self, step: int) -> None:
        """Start the clock, at the first step or where a run resumes."""
        self._first, self._began = step, self._now()

    @property
    def seconds(self) -> float:
        """The seconds since the start."""
        return self._now() - self._began

    def left(self, step: int) -> float | None:
        """Return the estimated seconds after `step` steps; None before the first one."""
        done = step - self._first
        return self.seconds / done * (self.total - step) if done > 0 else None


def describe_seconds(seconds: float) -> str:
    """Return a time in the two largest units that matter.

    >>> [describe_seconds(each) for each in (0.2, 47, 754, 8100, 200_000)]
    ['1 s', '47 s', '13 min', '2 h 15 min', '2 d 8 h']
    """
    if seconds < _MINUTE - 0.5:
        return f"{max(round(seconds), 1)} s"
    minutes = round(seconds / _MINUTE)
    if minutes < _HOUR // _MINUTE:
        return f"{minutes} min"
    if minutes < _DAY // _MINUTE:
        return f"{minutes // 60} h {minutes % 60} min" if minutes % 60 else f"{minutes // 60} h"
    hours = round(seconds / _HOUR)
    return f"{hours // 24} d {hours % 24} h"
