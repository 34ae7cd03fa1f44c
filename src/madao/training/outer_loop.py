"""The outer loop of a run: when the policy takes a step, and on which images."""

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from madao.config.outer_config import OuterConfig
from madao.data import Batches
from madao.distributed.sampling import shard_of
from madao.outer import OuterStep, PolicyOptimizer
from madao.outer.budget import OuterPlan
from madao.policy import BaseAugmentation
from madao.tasks import Task
from madao.training.ema import WeightAverage
from madao.training.inner_step import InnerResult, crop_and_flip, crop_batch
from madao.training.monitor.profiler import Profiler
from madao.training.schedule import cosine


class OuterLoop:
    """The outer loop of a run, which `build_outer_loop` builds from the settings.

    Args:
        outer: The optimizer of the policy.
        settings: The settings of the outer problem, none of them open.
        plan: The plan that decided the settings which were left open, if any.
        network: The model.
        task: The task.
        base_augmentation: Crop, flip, normalise and Cutout.
        profiler: Measures the time of outer steps, and how long they wait for images.
        validation_batches: The batches of validation images.
        train_batches: The batches of training images, if outer steps do not use those of the inner steps.
        ema: The average of the weights at which outer steps are taken, if any.

    Attributes:
        last: The latest outer step, if any.
        record: The rows of outer steps that are not in the run directory yet.
        at_work: Whether an outer step is in progress.
    """

    def __init__(
        self,
        outer: PolicyOptimizer,
        settings: OuterConfig,
        *,
        plan: OuterPlan | None = None,
        network: nn.Module,
        task: Task,
        base_augmentation: BaseAugmentation,
        profiler: Profiler,
        validation_batches: Batches,
        train_batches: Batches | None = None,
        ema: WeightAverage | None = None,
    ) -> None:
        self.outer, self.settings, self.plan, self.ranks = outer, settings, plan, outer.ranks
        self.network, self.task, self.base_augmentation = network, task, base_augmentation
        self.profiler, self.ema = profiler, ema
        self._validation, self._train = validation_batches, train_batches
        self._streams: tuple[Iterator[Any], Iterator[Any] | None] | None = None
        self.last: OuterStep | None = None
        self.record: list[dict[str, Any]] = []
        self.at_work = False

    def largest_pass(self, batch_size: int) -> int:
        """Return the most images that pass through the model together if inner steps have `batch_size`."""
        own = batch_size if self._train is None else self._train.batch_size
        largest = max(self._validation.batch_size, own)
        return min(largest, self.outer.compute.microbatch or largest)

    def applies(self, step: int) -> bool:
        """Return whether training images pass through the policy at a step."""
        return step >= self.outer.warmup or self.settings.warmup_augment == "policy"

    def step(self, progress: float, trained: InnerResult) -> None:
        """Count an inner step; update the policy if an outer step is due.

        Args:
            progress: The fraction of training that is over.
            trained: The result of the inner step.
        """
        if not self.outer.tick():
            return
        self.at_work = True
        with self.profiler.outer_step():
            self._update(progress, trained)
        self.at_work = False

    def _update(self, progress: float, trained: InnerResult) -> None:
        if self.settings.decay:
            assert self.settings.lr is not None
            for group in self.outer.optimizer.param_groups:
                group["lr"] = self.settings.lr * cosine(progress)
        validation, train = self._next_streams()
        cropped, targets, draw = trained.cropped, trained.targets, trained.draw
        if train is not None:
            assert self._train is not None
            shard = shard_of(self._train.batch_size, self.ranks)
            images, targets = next(train)
            draw, cropped, targets = crop_batch(self.task, self.base_augmentation, images, targets, shard)
        images, labels = next(validation)
        shard = shard_of(self._validation.batch_size, self.ranks)
        batch = self.task.outer(
            self.base_augmentation, images, labels, lambda: crop_and_flip(self.base_augmentation, images, shard)[1]
        )
        self.ranks.broadcast_(self.network.buffers())
        if self.ema is not None:
            if self._done == 0:
                self.ema.module.load_state_dict(self.network.state_dict())  # weights of before are not trained
            self.ema.update(self.network)
        places = (draw.hole_y, draw.hole_x)
        self.last = self.outer.update((cropped, targets, *places), batch, self.base_augmentation.after_policy)
        self.record.append(_health(self.outer.calls, self.last))

    def check_alike(self) -> None:
        """Raise if the processes' policies differ in a bit, which would be a bug of madao."""
        if self.ranks.world == 1:
            return
        policy = self.outer.policy
        flat = torch.cat([value.detach().flatten().float() for value in (*policy.parameters(), *policy.buffers())])
        if not torch.equal(self.ranks.all_reduce_max(flat), -self.ranks.all_reduce_max(-flat)):
            raise RuntimeError(f"the policy of process {self.ranks.rank} differs from that of the others")

    def state_dict(self) -> dict[str, Any]:
        """Return the optimizer's state, the rows that are not written yet, and the average of the weights."""
        average = None if self.ema is None else self.ema.state_dict()
        return {**self.outer.state_dict(), "record": list(self.record), "average": average}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a saved state."""
        self.outer.load_state_dict(state)
        self.record = list(state.get("record", ()))
        if self.ema is not None and state.get("average") is not None:
            self.ema.load_state_dict(state["average"])
        self._streams = None

    @property
    def _done(self) -> int:
        """The number of outer steps so far."""
        return self.outer.updates + self.outer.skipped

    def _next_streams(self) -> tuple[Iterator[Any], Iterator[Any] | None]:
        """Return the streams of validation and training images, from the current step on."""
        if self._streams is None:
            train = None if self._train is None else self.profiler.awaited(self._train.stream(self._done))
            self._streams = self.profiler.awaited(self._validation.stream(self._done)), train
        return self._streams


def _health(step: int, outer: OuterStep) -> dict[str, Any]:
    """Return a row of outer.csv."""
    stats = outer.stats
    names = ("outer_loss", "v_norm", "q_norm", "residual", "grad_norm", "products")
    numbers = {name: getattr(stats, name) for name in names}
    signal = {f"signal_{kind}": ratio for kind, ratio in outer.signal.items() if math.isfinite(ratio)}
    return {"step": step, **numbers, **signal, "status": stats.status.name.lower(), "applied": int(outer.applied)}
