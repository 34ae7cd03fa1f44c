"""Signals that ask a run to stop after its step and a checkpoint."""

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

_ONCE = 0.5
"""Seconds within which two signals count as one."""


class Interrupted(Exception):  # noqa: N818 -- being asked to stop is no error
    """A stop of a run because of a signal.

    Args:
        number: The signal.
        message: The step at which it stopped.
    """

    def __init__(self, number: int, message: str) -> None:
        super().__init__(message)
        self.number = number

    @property
    def exit_code(self) -> int:
        """The exit code: 128 plus the signal, as in shells."""
        return 128 + self.number


class StopRequest:
    """A request to stop.

    Attributes:
        number: The signal; None before there is one.
    """

    def __init__(self) -> None:
        self.number: int | None = None


@contextmanager
def stop_requests(until: str) -> Iterator[StopRequest]:
    """Catch SIGINT and SIGTERM. A second signal has its usual effect.

    Signals within half a second of the first count as one: `timeout` signals a program, and then its process group.

    Args:
        until: The work that comes before the stop, for the message after Ctrl-C.
    """
    request = StopRequest()
    if threading.current_thread() is not threading.main_thread():
        yield request  # only the main thread gets signals
        return
    before: dict[int, Any] = {}

    first = 0.0

    def handle(number: int, _: FrameType | None) -> None:
        nonlocal first
        if request.number is None:
            request.number, first = number, time.monotonic()
            if number == signal.SIGINT:
                os.write(2, f"\nstopping, after {until}; Ctrl-C again stops immediately\n".encode())
        elif time.monotonic() - first > _ONCE:
            for caught, handler in before.items():
                signal.signal(caught, handler)
            signal.raise_signal(number)

    for number in (signal.SIGINT, signal.SIGTERM):
        before[number] = signal.signal(number, handle)
    try:
        yield request
    finally:
        for caught, handler in before.items():
            signal.signal(caught, handler)
