"""Signals that ask a run to stop: the step is finished, a checkpoint written, and only then it stops."""

import os
import shlex
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

_ONCE = 0.5
"""Seconds within which two signals are one."""


class Interrupted(Exception):  # noqa: N818 -- being asked to stop is no error
    """A run stopped because it was asked to.

    Args:
        number: The signal.
        message: Where it stopped and how to go on.
    """

    def __init__(self, number: int, message: str) -> None:
        super().__init__(message)
        self.number = number

    @property
    def exit_code(self) -> int:
        """128 plus the signal, as shells have it."""
        return 128 + self.number


def how_to_resume(run: Path) -> str:
    """The command that goes on with a run, for the end of a message."""
    return f"go on with: madao train --out {shlex.quote(str(run))} --resume"


class StopRequest:
    """Whether a signal has come."""

    def __init__(self) -> None:
        self.number: int | None = None


@contextmanager
def stop_requests(until: str) -> Iterator[StopRequest]:
    """Catch SIGINT and SIGTERM; a second one of either acts at once, as if nobody had caught it.

    Unless it comes within half a second: `timeout` signals a program and its group, which is the program again.

    Args:
        until: What is waited for, said to whoever pressed Ctrl-C.
    """
    request = StopRequest()
    if threading.current_thread() is not threading.main_thread():
        yield request  # signals belong to the main thread
        return
    before: dict[int, Any] = {}

    first = 0.0

    def handle(number: int, _: FrameType | None) -> None:
        nonlocal first
        if request.number is None:
            request.number, first = number, time.monotonic()
            if number == signal.SIGINT:
                os.write(2, f"\nstopping, after {until}; Ctrl-C again stops at once\n".encode())
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
