"""Limits of time and rights for tests of hostile files."""

import contextlib
import os
import resource
import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

import pytest

NOBODY = 65534


@contextlib.contextmanager
def time_limit(seconds: int = 20) -> Iterator[None]:
    """Fail where something computes longer, or waits ten times as long, also in a system call."""

    def stop(number: int, frame: FrameType | None) -> None:
        pytest.fail(f"it hangs: not done after {seconds} s")  # no Exception, so nothing catches it

    timers = {signal.SIGPROF: (signal.ITIMER_PROF, seconds), signal.SIGALRM: (signal.ITIMER_REAL, 10 * seconds)}
    before = {number: signal.signal(number, stop) for number in timers}
    for timer, limit in timers.values():
        signal.setitimer(timer, limit)
    try:
        yield
    finally:
        for number, (timer, _) in timers.items():
            signal.setitimer(timer, 0)
            signal.signal(number, before[number])


@contextlib.contextmanager
def open_folder() -> Iterator[Path]:
    """A temporary folder that every user may read."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


@contextlib.contextmanager
def without_rights() -> Iterator[None]:
    """Have no more rights than any other user, also where the tests run as root."""
    before = os.geteuid()
    if before == 0:
        os.seteuid(NOBODY)
    try:
        yield
    finally:
        if before == 0:
            os.seteuid(before)


@contextlib.contextmanager
def memory_limit(count: int) -> Iterator[None]:
    """Fail to get more than so many bytes above those of this process."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + count, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)
