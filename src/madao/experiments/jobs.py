"""Several trainings, each in a process of its own, some at a time."""

import collections
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
from collections.abc import Callable, Iterator, Sequence
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
"""Seconds that a cell waits for a run directory that a process of a killed command is about to leave, and that a
command which fails waits for its cells to write their checkpoints."""
_GLANCE = 0.1
"""Seconds between two looks at whether a signal has come. What a group is sent reaches the cells too: told again within
half a second, they take it for the same signal."""
_LONGEST = 2000
"""Characters of a message: a pipe that nobody reads yet has room for 64 kB, and then blocks."""
_STOPPED = {128 + signal.SIGINT, 128 + signal.SIGTERM, -signal.SIGTERM}
"""How a process ends that was told to: after its checkpoint, or by the signal itself, before there was any."""
_ALIKE = 2
"""How many cells fail with the same words, and none otherwise, before the rest is given up."""


@dataclasses.dataclass(frozen=True)
class Job:
    """A training.

    Attributes:
        name: For people.
        config: What to run; `out` is given, and `resume`.
        then: Is called with the result, or with what went wrong; may add cells.
    """

    name: str
    config: TrainConfig
    then: Callable[[Result | None], None] | None = None

    @property
    def result(self) -> Result | None:
        """How it ended, if it has."""
        return Result.load(Path(str(self.config.out)))


class JobPool:
    """Trains cells; what is finished already is not trained again, and what has begun goes on.

    Args:
        jobs: Processes at a time.
        ended: Is called after each cell that ended.

    Attributes:
        problems: What went wrong, by the cell's name.
    """

    def __init__(self, jobs: int = 1, ended: Callable[[], object] | None = None) -> None:
        self.jobs, self.ended = jobs, ended
        self.problems: dict[str, str] = {}
        self._waiting: collections.deque[Job | Callable[[], Sequence[Job]]] = collections.deque()
        self._running: dict[int, tuple[Job, BaseProcess, Connection]] = {}
        self._succeeded, self._opened = 0, False

    def add(self, cell: Job) -> None:
        """Let a cell be trained after those that wait."""
        self._waiting.append(cell)

    def ask(self, source: Callable[[], Sequence[Job]]) -> None:
        """Let a function say which cells come next, each time that one can start and until it names none."""
        self._waiting.append(source)

    def run(self) -> None:
        """Train until no cell waits. A cell that fails does not keep others from being trained.

        Raises:
            Interrupted: By SIGINT or SIGTERM, once every cell has written its checkpoint.
        """
        with stop_requests("every training's step and checkpoint") as request:
            try:
                while self._start() or self._running:
                    self._wait(request)
            finally:  # a second signal, or an error of ours
                self._give_up()

    def _start(self) -> bool:
        """Start what there is room for; whether anything waits."""
        while self._waiting and len(self._running) < self.jobs and not self._hopeless():
            cell = self._waiting.popleft()
            if not isinstance(cell, Job):
                if found := cell():
                    self._waiting.extendleft([cell, *reversed(found)])
                continue
            if (result := cell.result) is not None:
                self._succeeded += 1
                self._end(cell, result)
                continue
            ours, theirs = multiprocessing.Pipe(duplex=False)
            arguments = (cell.config, cell.name, self.jobs, theirs, not self._opened)
            process = _context().Process(target=_train, args=arguments)
            self._opened = True
            with _deaf():
                process.start()
            theirs.close()
            self._running[process.sentinel] = (cell, process, ours)
        if self._hopeless():
            self._waiting.clear()
        return bool(self._waiting)

    def _wait(self, request: StopRequest) -> None:
        for sentinel in multiprocessing.connection.wait([*self._running], timeout=_GLANCE):
            assert isinstance(sentinel, int)
            cell, process, channel = self._running.pop(sentinel)
            process.join()
            self._note(cell, process.exitcode or 0, channel, request.number is not None)
        if request.number is not None:
            self._stop()
            raise Interrupted(request.number, "stopped")

    def _note(self, cell: Job, code: int, channel: Connection, stopping: bool) -> None:
        """Take down how a cell ended; one that stops when all do has not failed."""
        message = ""
        with channel, contextlib.suppress(EOFError):  # what ended without a word
            message = channel.recv() if code > 0 and channel.poll() else ""
        result = cell.result
        if result is not None and code == 0:
            self._succeeded += 1
        elif not (stopping and code in _STOPPED):
            if code == -signal.SIGKILL:
                message = "it was killed, perhaps for want of memory"
            self.problems[cell.name] = message or f"its process ended with code {code}"
            print(f"{cell.name}: failed: {self.problems[cell.name]}", file=sys.stderr, flush=True)
        self._end(cell, result)
        if self.ended is not None:
            self.ended()

    def _end(self, cell: Job, result: Result | None) -> None:
        if cell.then is not None:
            cell.then(result)

    def _hopeless(self) -> bool:
        """Whether every cell so far has failed in the same way: the others would too."""
        return not self._succeeded and len(self.problems) >= _ALIKE and len({*self.problems.values()}) == 1

    def _stop(self) -> None:
        """Let every process write its checkpoint and end."""
        for _, process, _ in self._running.values():
            process.terminate()
        for sentinel, (cell, process, channel) in [*self._running.items()]:
            process.join()
            del self._running[sentinel]
            self._note(cell, process.exitcode or 0, channel, stopping=True)

    def _give_up(self) -> None:
        """Let every process write its checkpoint, but not for ever."""
        processes = [process for _, process, _ in self._running.values()]
        for process in processes:
            process.terminate()
        end = time.monotonic() + _PATIENCE
        for process in processes:
            process.join(max(0.0, end - time.monotonic()))
            process.kill()


def _context() -> Any:
    """How processes begin: where there is a GPU afresh, since CUDA survives no fork; else with torch imported."""
    if torch.cuda.is_available() or "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    return context


def _train(config: TrainConfig, name: str, jobs: int, channel: Connection, first: bool = False) -> None:
    """What a cell's process does; the first one says which images and which model it has."""
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # of a server that others started, too
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
    threading.Thread(target=_stop_with_parent, daemon=True).start()
    if jobs > 1:
        torch.set_num_threads(max(1, torch.get_num_threads() // jobs))
        sys.stdout = _Lines(sys.stdout.buffer, encoding="utf-8", line_buffering=True)
    try:
        _wait_for(Path(str(config.out)))
        run = build_run(config, title=name)
        if first:
            print("\n".join(describe_run(run)), flush=True)
        elif (few := policy_advice(run)) is not None:
            print(f"{name}: {few}", flush=True)
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


class _Lines(io.TextIOWrapper):
    """Standard output without progress bars, of which a terminal has room for one."""

    def isatty(self) -> bool:
        return False


def _stop_with_parent() -> None:
    """End as if asked to, once the process that started this one is gone."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os.kill(os.getpid(), signal.SIGTERM)


def _wait_for(path: Path) -> None:
    """Until nobody is at work in a run directory; what still is after a while is told by the trainer."""
    end = time.monotonic() + _PATIENCE
    while path.is_dir() and time.monotonic() < end:
        try:
            free = lock(path)
        except UserError:
            time.sleep(0.2)
            continue
        if free is not None:
            free.close()
        return


@contextmanager
def _deaf() -> Iterator[None]:
    """Processes started here never hear of Ctrl-C, which a terminal sends to all: theirs is to end when told to.

    Nor of SIGTERM, which may come to the whole group too, until they let it in: cells do, and the server that forks
    them never, since without it nobody would know how they end.
    """
    if not hasattr(signal, "pthread_sigmask"):  # not on Windows
        yield
        return
    resource_tracker.ensure_running()  # which lets both through again, when it is started
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
