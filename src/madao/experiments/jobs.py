"""Trainings in separate processes, several at a time."""

import contextlib
import dataclasses
import io
import multiprocessing
import multiprocessing.connection
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import torch

from madao.config.train_config import TrainConfig
from madao.errors import DataError, ModelError, UserError
from madao.training.builders.run import build_run
from madao.training.interrupt import Interrupted, StopRequest, stop_requests
from madao.training.monitor.advice import describe_run, policy_advice
from madao.training.run.directory import lock
from madao.training.run.result import Result
from madao.training.trainer import Trainer

_PATIENCE = 60.0
"""Seconds to wait for a run directory that a killed command's process is leaving, and for last checkpoints."""
_POLL = 0.1
"""Seconds between two checks for a signal. A signal to the group reaches the jobs too, and they take a second one
within half a second for the same."""
_LONGEST = 2000
"""Characters of a message. A pipe that nobody reads yet blocks after 64 kB."""
_STOPPED = {128 + signal.SIGINT, 128 + signal.SIGTERM, -signal.SIGTERM}
"""Exit codes of a job that was told to stop: after its checkpoint, or by the signal before there was any."""
_HOPELESS = 2
"""Number of jobs that fail with the same message, while none succeeds, before the pool gives up."""


@dataclasses.dataclass(frozen=True)
class Job:
    """A training with a name in messages, and settings with `out` and `resume`."""

    name: str
    config: TrainConfig

    @property
    def result(self) -> Result | None:
        """The result, once the run has ended."""
        return Result.load(Path(str(self.config.out)))


class JobPool:
    """A pool of processes that trains jobs. Finished ones are skipped, interrupted ones resumed.

    `concurrent.futures.ProcessPoolExecutor` is not enough. It gives up all jobs when one process dies, for example
    because it is out of memory, and it cannot ask a running job for a checkpoint.
    """

    def __init__(
        self,
        size: int = 1,  # processes at a time
        ended: Callable[[Job, str | None], object] = lambda *_: None,  # gets each job that was trained, and its error
        target: Callable[..., None] | None = None,  # runs in each process, by default `train`
    ) -> None:
        self.size, self.ended, self.target = size, ended, target or train
        self.problems: dict[str, str] = {}  # the error of each failed job, by its name
        self._running: dict[int, tuple[Job, BaseProcess, Connection]] = {}
        self._succeeded = self._started = 0

    def run(self, jobs: Iterable[Job | None]) -> None:
        """Train all jobs. One that fails does not stop the others.

        A new job is taken when a process is free. None means to wait until a running job has ended, or to end if none
        is.

        Raises:
            Interrupted: On SIGINT or SIGTERM, once every job has written its checkpoint.
        """
        source = iter(jobs)
        with stop_requests("every training's step and checkpoint") as request:
            try:
                more = self._start(source)
                while more or self._running:
                    if self._wait(request):
                        more = self._start(source)
            finally:  # a second signal, or an error here
                self._give_up()

    def _start(self, source: Iterator[Job | None]) -> bool:
        """Start jobs while there is room; return whether more may come."""
        while len(self._running) < self.size:
            if self._is_hopeless() or (job := next(source, None)) is None:
                return False
            if job.result is not None:
                self._succeeded += 1
                continue
            ours, theirs = multiprocessing.Pipe(duplex=False)
            arguments = (job.config, job.name, self.size, theirs, not self._started)
            process = _context().Process(target=self.target, args=arguments)
            self._started += 1
            with _signals_blocked():
                process.start()
            theirs.close()
            self._running[process.sentinel] = (job, process, ours)
        return True

    def _wait(self, request: StopRequest) -> bool:
        """Wait a moment; return whether a job has ended."""
        ended = multiprocessing.connection.wait([*self._running], timeout=_POLL)
        for sentinel in ended:
            assert isinstance(sentinel, int)
            self._end(sentinel, request.number is not None)
        if request.number is not None:
            for _, process, _ in self._running.values():
                process.terminate()
            for sentinel in [*self._running]:
                self._end(sentinel, stopping=True)
            raise Interrupted(request.number, "stopped")
        return bool(ended)

    def _end(self, sentinel: int, stopping: bool) -> None:
        """Wait for the end of a process and note it; stopping when all do is no failure."""
        job, process, channel = self._running[sentinel]
        process.join()
        del self._running[sentinel]
        code, message = process.exitcode or 0, ""
        with channel, contextlib.suppress(EOFError):  # it ended without a message
            message = channel.recv() if code > 0 and channel.poll() else ""
        if code == 0 and job.result is not None:
            self._succeeded += 1
        elif not (stopping and code in _STOPPED):
            killed = "it was killed, perhaps for want of memory" if code == -signal.SIGKILL else ""
            self.problems[job.name] = killed or message or f"its process ended with code {code}"
        self.ended(job, self.problems.get(job.name))

    def _is_hopeless(self) -> bool:
        return not self._succeeded and len(self.problems) >= _HOPELESS and len({*self.problems.values()}) == 1

    def _give_up(self) -> None:
        """Let every process write its checkpoint, within limits."""
        processes = [process for _, process, _ in self._running.values()]
        for process in processes:
            process.terminate()
        end = time.monotonic() + _PATIENCE
        for process in processes:
            process.join(max(0.0, end - time.monotonic()))
            process.kill()


def _context() -> Any:
    """Choose how processes start: forked with torch imported, or anew if a GPU is in use, which no fork survives."""
    if torch.cuda.is_available() or "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    return context


def train(
    config: TrainConfig,
    name: str,
    size: int,
    channel: Connection,
    first: bool = False,
    say: Callable[[str], object] = print,
) -> None:
    """Train in a process of a pool of `size`; send the message of an error through the channel.

    The first job also says which images and which model all jobs have. `say` gets settings in backticks.
    """
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # a server that others started may let it through
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
    threading.Thread(target=_stop_with_parent, daemon=True).start()
    if size > 1:
        torch.set_num_threads(max(1, torch.get_num_threads() // size))
        sys.stdout = _WithoutTerminal(sys.stdout.buffer, encoding="utf-8", line_buffering=True)
    try:
        _wait_for(Path(str(config.out)))
        run = build_run(config, title=name)
        if first:
            say("\n".join(describe_run(run)))
        elif (advice := policy_advice(run)) is not None:
            say(f"{name}: {advice}")
        sys.stdout.flush()
        Trainer(run).fit()
    except Interrupted as stop:
        sys.exit(stop.exit_code)
    except (UserError, DataError, ModelError) as error:
        channel.send(str(error)[:_LONGEST])
        sys.exit(2)
    except Exception as error:
        traceback.print_exc()
        channel.send(f"{type(error).__name__}: {error}"[:_LONGEST])
        sys.exit(1)


class _WithoutTerminal(io.TextIOWrapper):
    """Standard output without progress bars: a terminal has room for only one."""

    def isatty(self) -> bool:
        return False


def _stop_with_parent() -> None:
    """Stop this process as by SIGTERM once its parent is gone."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os.kill(os.getpid(), signal.SIGTERM)


def _wait_for(path: Path) -> None:
    """Wait until no process holds a run directory; the trainer reports one that is held for longer."""
    end = time.monotonic() + _PATIENCE
    while path.is_dir() and time.monotonic() < end:
        with contextlib.suppress(UserError):
            if (free := lock(path)) is not None:
                free.close()
            return
        time.sleep(0.2)


@contextmanager
def _signals_blocked() -> Iterator[None]:
    """Start processes with SIGINT and SIGTERM blocked.

    A terminal sends Ctrl-C to the whole group, but only the pool stops jobs. They unblock SIGTERM themselves. The
    server that forks them never does: without it the pool could not learn how they ended.
    """
    if not hasattr(signal, "pthread_sigmask"):  # Windows
        yield
        return
    resource_tracker.ensure_running()  # its start would unblock both
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
