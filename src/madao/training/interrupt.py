"""Signals that ask a run to stop: the step is finished, a checkpoint written, and only then it stops."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any


class Interrupted(Exception):  # noqa: N818 -- being asked to stop is no error
    """A run stopped because it was asked to; a checkpoint was written.

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


class StopRequest:
    """Whether a signal has come."""

    def __init__(self) -> None:
        self.number: int | None = None


@contextmanager
def stop_requests() -> Iterator[StopRequest]:
    """Catch SIGINT and SIGTERM; a second one of either acts at once, as if nobody had caught it."""
    request = StopRequest()
    if threading.current_thread() is not threading.main_thread():
        yield request  # signals belong to the main thread
        return
    before: dict[int, Any] = {}

    def handle(number: int, _: FrameType | None) -> None:
        request.number = number
        for caught, handler in before.items():
            signal.signal(caught, handler)

    for number in (signal.SIGINT, signal.SIGTERM):
        before[number] = signal.signal(number, handle)
    try:
        yield request
    finally:
        for caught, handler in before.items():
            signal.signal(caught, handler)
