"""The order of the queue: which cell starts next, by estimated time and memory. Starts no processes."""

import dataclasses
import math
import statistics
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

Job = tuple[float, float]
"""Seconds until a training begins its first epoch, and the seconds it would then take alone."""


@dataclasses.dataclass(frozen=True)
class QueuedCell:
    """A line of the queue.

    Attributes:
        recipe: The recipe's name, which stands for data set, model and settings.
        method: The method of `madao compare`, or a variant of `variants.yaml`.
        seed: The seed.
        seconds: Seconds that all epochs take where the cell has a GPU to itself.
        start: Seconds until the first epoch, compilation included.
        memory: MiB of GPU memory.
        epochs: The number of epochs, if it is not the recipe's.
    """

    recipe: str
    method: str
    seed: int
    seconds: float
    start: float
    memory: float
    epochs: int | None = None

    @property
    def name(self) -> str:
        """For people, and unique in a queue."""
        epochs = "" if self.epochs is None else f"-{self.epochs}"
        return f"{self.recipe}{epochs} {self.method} {self.seed}"


@dataclasses.dataclass(frozen=True)
class Queue:
    """The queue's file.

    Attributes:
        settings: Settings of every cell that say how it runs, by their dotted names.
        sharing: The slow-down per job that is assumed before any is measured, `with_mps` and `without_mps`.
        needs: A file in the folder of the data sets that the cells of a recipe need, by the recipe's name.
        cells: The cells, the most urgent first.
    """

    settings: Mapping[str, Any]
    sharing: Mapping[str, float]
    needs: Mapping[str, str]
    cells: Sequence[QueuedCell]


def read_queue(path: Path) -> Queue:
    """Read a queue's file.

    Raises:
        SystemExit: If a cell is there twice.
    """
    content = yaml.safe_load(path.read_text())
    cells = [QueuedCell(**cell) for cell in content["cells"]]
    names = [cell.name for cell in cells]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise SystemExit(f"{path}: these cells are there twice: {', '.join(twice)}")
    return Queue(content["settings"], content["sharing"], content.get("needs", {}), cells)


@dataclasses.dataclass
class SlowDown:
    """How much slower each of several trainings is than one alone: in proportion to their number, and never faster.

    Attributes:
        per_job: The slow-down divided by the number of trainings.
    """

    per_job: float

    def __call__(self, jobs: int) -> float:
        """The factor when so many train."""
        return max(1.0, self.per_job * jobs)

    def measure(self, ratios: Sequence[float]) -> None:
        """Learn from the trainings that run now: how many times slower each is than alone."""
        if ratios:
            self.per_job = statistics.median(ratios) / len(ratios)


def epoch_seconds(marks: Sequence[tuple[float, int]], window: float) -> float | None:
    """The seconds per epoch of the last `window` seconds; None until two epochs were seen to end in them.

    Args:
        marks: The times at which an epoch was seen to end, and its number.
        window: Seconds. Older marks do not count: another number of trainings ran then.
    """
    if not marks:
        return None
    recent = [mark for mark in marks if mark[0] >= marks[-1][0] - window]
    (first, before), (last, now) = recent[0], recent[-1]
    return (last - first) / (now - before) if now > before else None


def job(cell: QueuedCell, epochs: int, done: int, running: float | None = None) -> Job:
    """What is left of a cell.

    Args:
        cell: The cell.
        epochs: How many it has.
        done: How many are over.
        running: Seconds since it was started, if it was and has not yet finished an epoch since.
    """
    left = cell.seconds * (epochs - done) / epochs
    return (max(0.0, cell.start - running) if running is not None else 0.0, left)


def finish_times(jobs: Sequence[Job], slow_down: Callable[[int], float]) -> list[float]:
    """When each of several jobs ends that share a GPU from now on, in seconds.

    Args:
        jobs: The jobs.
        slow_down: The factor by which each is slower when so many train.
    """
    left, ends, now = [work for _, work in jobs], [math.nan] * len(jobs), 0.0
    open_jobs = {*range(len(jobs))}
    while open_jobs:
        for index in [index for index in open_jobs if jobs[index][0] <= now and left[index] <= 1e-9]:
            ends[index] = now
            open_jobs.remove(index)
        active = [index for index in open_jobs if jobs[index][0] <= now]
        until = min((jobs[index][0] for index in open_jobs if jobs[index][0] > now), default=math.inf)
        if active:
            factor = slow_down(len(active))
            shortest = min(left[index] for index in active)
            ends_first = now + shortest * factor
            step = min(ends_first, until) - now
            for index in active:
                left[index] = 0.0 if left[index] == shortest and ends_first <= until else left[index] - step / factor
            now += step
        elif open_jobs:
            now = until
    return ends


def fits(candidate: Job, running: Sequence[Job], remaining: float, slow_down: Callable[[int], float]) -> bool:
    """Whether a job can begin now and end in time, and makes no other late that would have been in time without it.

    Args:
        candidate: The job that may begin.
        running: The jobs that run.
        remaining: Seconds until all must have ended.
        slow_down: See `finish_times`.
    """
    *others, own = finish_times([*running, candidate], slow_down)
    before = finish_times(running, slow_down)
    return own <= remaining and not any(now > remaining >= then for now, then in zip(others, before, strict=True))


def next_cell(
    waiting: Sequence[tuple[QueuedCell, Job, str]],
    running: Sequence[Job],
    compiling: Collection[str],
    remaining: float,
    memory: float,
    slow_down: Callable[[int], float],
) -> QueuedCell | None:
    """The first cell in the queue's order that may start now.

    Args:
        waiting: The cells that wait, in order: what is left of each, and the name of the code it compiles.
        running: What is left of the cells that run.
        compiling: The codes that some running cell is compiling: others wait, and then find it in the cache.
        remaining: Seconds until all must have ended.
        memory: MiB of GPU memory that nobody uses.
        slow_down: See `finish_times`.
    """
    for cell, left, code in waiting:
        if code not in compiling and cell.memory <= memory and fits(left, running, remaining, slow_down):
            return cell
    return None
