"""A dry run: a few real steps, which tell the time and memory of a run without writing anything."""

import dataclasses
import itertools
import math
import time
from collections.abc import Iterator

import torch
from torch import Tensor

from madao.config.train_config import TrainConfig
from madao.distributed.launch import rank_zero_first
from madao.errors import UserError
from madao.training.builders.run import build_run
from madao.training.evaluate import evaluate_run
from madao.training.monitor.advice import memory_advice
from madao.training.outer_check import check_outer_step
from madao.training.outer_loop import OuterLoop
from madao.training.run.state import Run
from madao.training.trainer import Trainer

_TIMED = 2
_UNTIMED = {"cpu": 1, "cuda": 12}
"""Steps before the timed ones, in which torch chooses algorithms, compiles, and records CUDA graphs."""
_EVALUATED = 1000
"""The most validation images whose time is measured."""


@dataclasses.dataclass(frozen=True)
class Cost:
    """The cost of a run.

    Attributes:
        steps: The training steps that are left.
        outer_steps: The steps of the policy among them.
        step_seconds: The time of a training step.
        outer_seconds: The time of a step of the policy; None if there is none.
        evaluation_seconds: The time of all evaluations that are left.
        memory_mib: The peak memory: that of torch on a GPU, that of the process on the CPU; None if unknown.
    """

    steps: int
    outer_steps: int
    step_seconds: float
    outer_seconds: float | None
    evaluation_seconds: float
    memory_mib: float | None

    @property
    def seconds(self) -> float:
        """The estimated time of the run."""
        learning = self.outer_steps * (self.outer_seconds or 0.0)
        return self.steps * self.step_seconds + learning + self.evaluation_seconds


def build_dry_run(config: TrainConfig) -> Run:
    """Return a run that is built and restored as for training, without a download or a file."""
    run = build_run(dataclasses.replace(config, data=dataclasses.replace(config.data, download=False)))
    state = rank_zero_first(run.ranks, run.directory.checkpoints.load)
    if state is not None:
        run.load_state_dict(state)
    return run


def measure_cost(run: Run) -> Cost:
    """Take a few steps, one of them with a step of the policy, and return the cost of what is left of a run.

    The run cannot be trained afterwards: its weights and counts have changed.

    Raises:
        UserError: A step does not fit in memory.
    """
    try:
        return _measured(run)
    except RuntimeError as error:
        if (remedy := memory_advice(error, run)) is not None:
            raise UserError(f"out of memory in a first step; {remedy}") from None
        raise


def _measured(run: Run) -> Cost:
    total, loop, epoch = run.config.epochs * run.steps_per_epoch, run.outer_loop, run.epoch
    steps, outer_steps = total - run.step, 0 if loop is None else _outer_steps(loop, run.step, total)
    if loop is not None:
        run.notes.extend(check_outer_step(loop, run.splits.train, run.device, run.config.task.bn_splits))
    trainer, batches = Trainer(run), _batches(run)
    run.model.train()
    run.step = total // 2  # past the warm-ups
    for images, targets in itertools.islice(batches, _UNTIMED.get(run.device.type, 1)):
        _step(trainer, images, targets, due=outer_steps > 0)
    run.profiler.clear()
    began = _now(run.device)
    for images, targets in itertools.islice(batches, _TIMED):
        _step(trainer, images, targets, due=False)
    step_seconds = (_now(run.device) - began) / _TIMED
    if outer_steps:
        _step(trainer, *next(batches), due=True)
    cost = run.profiler.read()
    return Cost(
        steps=steps,
        outer_steps=outer_steps,
        step_seconds=step_seconds,
        outer_seconds=cost["outer_seconds"] if outer_steps else None,
        evaluation_seconds=_evaluation_seconds(trainer, epoch),
        memory_mib=cost["outer_memory_mib"] or cost["memory_mib"],
    )


def _batches(run: Run) -> Iterator[tuple[Tensor, Tensor]]:
    for epoch in itertools.count():
        yield from run.train_batches.epoch(epoch)


def _step(trainer: Trainer, images: Tensor, targets: Tensor, due: bool) -> None:
    """Take a training step, and one of the policy if it is `due`."""
    loop = trainer.run.outer_loop
    if loop is not None:
        outer = loop.outer
        assert outer.every is not None
        outer.calls = math.ceil((outer.warmup + 1) / outer.every) * outer.every - 1 if due else 0
        if outer.due() and not due:  # with `outer.every=1`
            outer.calls = -1
    trainer.train_step(images, targets)


def _outer_steps(loop: OuterLoop, step: int, total: int) -> int:
    """Return the number of steps of the policy from a training step on."""
    outer, count = loop.outer, 0
    for outer.calls in range(step, total):
        count += outer.due()
    return count


def _evaluation_seconds(trainer: Trainer, epoch: int) -> float:
    run, validation = trainer.run, trainer.run.splits.validation
    if validation is None:
        return 0.0
    some = validation.subset(torch.arange(min(len(validation), _EVALUATED)))
    began = _now(run.device)
    evaluate_run(run, some)
    each = (_now(run.device) - began) / len(some)
    times = math.ceil(run.config.epochs / run.config.evaluate_every) - epoch // run.config.evaluate_every
    return each * (times * len(validation) + len(run.splits.test or ()))


def _now(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.monotonic()
