"""The outer problem of a run: which images the policy's optimizer sees, when, and by which solver and estimator."""

import functools
import math
import random
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from madao.config.outer_config import OuterConfig, warmup_epochs
from madao.config.train_config import TrainConfig
from madao.data import Batches
from madao.distributed.group import ProcessGroup
from madao.distributed.sampling import shard_of
from madao.errors import SharedError, UserError
from madao.hypergrad import (
    ClassMean,
    Deflated,
    GaussNewton,
    Identity,
    Influence,
    LeaveOneOut,
    Neumann,
    Relaxed,
    SameLoss,
    Unaugmented,
)
from madao.hypergrad.estimators.baselines import Baseline
from madao.outer import ComputeOptions, OuterStep, PolicyOptimizer
from madao.outer.policy_adam import PolicyAdam
from madao.policy import AugmentationPolicy, BaseAugmentation, Policy
from madao.tasks import Task
from madao.training.ema import WeightAverage
from madao.training.inner_step import InnerResult, crop_and_flip, crop_batch
from madao.training.monitor.profiler import Profiler
from madao.training.schedule import cosine
from madao.training.splits import Splits

_BASELINES: dict[str, Baseline] = {
    "leave-one-out": LeaveOneOut(),
    "class-mean": ClassMean(),
    "same-loss": SameLoss(),
    "unaugmented": Unaugmented(),
}

_MOST_PARTS = 16
"""The most passes into which the images of an outer step are divided by default."""


class OuterLoop:
    """The outer problem of a run: the optimizer of the policy, and the images of its steps.

    Args:
        config: The settings of the run.
        policy: The policy that learns.
        network: The model.
        task: The task.
        base_augmentation: Crop, flip, normalise and Cutout.
        splits: The images.
        train_batches: The order of the training images.
        profiler: Measures the time of outer steps, and how long they wait for images.
        autocast: The half-precision dtype of forward passes, if any.

    Attributes:
        outer: The optimizer of the policy.
        last: The latest outer step, if any.
        record: The rows of outer steps that are not in the run directory yet.
        at_work: Whether an outer step is going on.
        largest_pass: The most images that pass through the model together.

    Raises:
        UserError: The settings do not suit the task or the images.
    """

    def __init__(
        self,
        config: TrainConfig,
        *,
        policy: Policy,
        network: nn.Module,
        task: Task,
        base_augmentation: BaseAugmentation,
        splits: Splits,
        train_batches: Batches,
        profiler: Profiler,
        autocast: torch.dtype | None = None,
    ) -> None:
        settings = config.outer
        self.settings, self.task, self.base_augmentation = settings, task, base_augmentation
        self.network, self.profiler, self.ranks = network, profiler, ProcessGroup.current()
        if task.targets_follow_policy and settings.baseline == "class-mean":
            raise UserError(
                f"`outer.baseline=class-mean` needs a class for every image, and {task.name} has none; choose another "
                "`outer.baseline`"
            )
        if settings.learn != "all":
            for name, parameter in policy.named_parameters():
                parameter.requires_grad_(name.startswith("selection") == (settings.learn == "selection"))
        self.ema = WeightAverage(network, settings.average, ramp=False) if settings.average else None
        self.optimizer: torch.optim.Optimizer = (
            PolicyAdam(policy.parameters(), settings.lr, settings.init_decay)
            if settings.optimizer == "adam"
            else torch.optim.RMSprop(policy.parameters(), lr=settings.lr)
        )
        self.warmup = round(warmup_epochs(settings.warmup, config.epochs) * len(train_batches))
        microbatch = _microbatch(config, self.ranks.world)
        self.outer = PolicyOptimizer(
            policy,
            network if self.ema is None else self.ema.module.requires_grad_(True),
            task.outer_losses,
            every=settings.every,
            warmup=self.warmup,
            optimizer=self.optimizer,
            solver=_solver(settings),
            estimator=Relaxed() if settings.estimator == "relaxed" else Influence(_BASELINES[settings.baseline]),
            transform=base_augmentation.normalise,
            weight_decay=config.optimizer.weight_decay,
            clip=settings.clip,
            seed=config.seed,
            views=task.views,
            soft_targets=task.soft_targets if task.targets_follow_policy else None,
            compute=ComputeOptions(
                microbatch=microbatch,
                curvature_batch=settings.curvature_batch_size,
                pathwise_batch=_pathwise(settings, config.batch_size),
                autocast=autocast,
                inner_mode=settings.model_mode,
                check_every=10 if settings.solver == "neumann" else 0,
            ),
        )
        if settings.sign == "random":
            self.outer.sign = functools.partial(_coin, config.seed)
        self._validation, self._train = self._batches(config, splits, train_batches)
        self._streams: tuple[Iterator[Any], Iterator[Any] | None] | None = None
        self.last: OuterStep | None = None
        self.record: list[dict[str, Any]] = []
        self.at_work = False
        largest = max(self._validation.batch_size, (self._train or train_batches).batch_size)
        self.largest_pass = min(largest, microbatch or largest)

    def applies(self, step: int) -> bool:
        """Return whether training images pass through the policy at a step."""
        return step >= self.warmup or self.settings.warmup_augment == "policy"

    def step(self, progress: float, trained: InnerResult) -> None:
        """Count an inner step; update the policy if an outer step is due.

        Args:
            progress: The part of training that is over.
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
            for group in self.optimizer.param_groups:
                group["lr"] = self.settings.lr * cosine(progress)
        validation, train = self._next_streams()
        cropped, targets, draw = trained.cropped, trained.targets, trained.draw
        if train is not None:
            assert self._train is not None
            shard = shard_of(self._train.batch_size, self.ranks)
            draw, cropped, targets = crop_batch(self.task, self.base_augmentation, *next(train), shard)
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
        """Raise if the processes' policies differ in a bit: a check of madao, not of its user."""
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
        """Go on from a saved state."""
        self.outer.load_state_dict(state)
        self.record = list(state.get("record", ()))
        if self.ema is not None and state.get("average") is not None:
            self.ema.load_state_dict(state["average"])
        self._streams = None

    @property
    def _done(self) -> int:
        """The number of outer steps so far."""
        return self.outer.updates + self.outer.skipped

    def _batches(self, config: TrainConfig, splits: Splits, train_batches: Batches) -> tuple[Batches, Batches | None]:
        """Build the batches of validation images, and of training images where outer steps have their own."""
        if splits.validation is None:
            raise SharedError(
                "`data.val_fraction=0` leaves no images to learn a policy from; name a policy that is learned already, "
                "by `augment.method=RUN/policy.json`, or set some images aside"
            )
        settings, ranks = config.outer, self.ranks
        batches = functools.partial(
            Batches,
            device=train_batches.device,
            workers=config.data.processes,
            rank=ranks.rank,
            world=ranks.world,
        )
        validation = batches(splits.validation, settings.batch_size or config.batch_size, seed=config.seed)
        train = (
            batches(splits.train, settings.train_batch_size, seed=config.seed + 1)
            if settings.train_batch_size is not None
            else None
        )
        for own in (validation, train):
            if own is not None and own.batch_size < ranks.world:
                raise SharedError(
                    f"outer steps of {own.batch_size} images cannot be shared by {ranks.world} processes; lower "
                    "`devices`, or raise `outer.batch_size` and `outer.train_batch_size`"
                )
        return validation, train

    def _next_streams(self) -> tuple[Iterator[Any], Iterator[Any] | None]:
        """Return the streams of validation and training images, at the place where the run stands."""
        if self._streams is None:
            train = None if self._train is None else self.profiler.awaited(self._train.stream(self._done))
            self._streams = self.profiler.awaited(self._validation.stream(self._done)), train
        return self._streams


def build_outer_loop(config: TrainConfig, *, policy: AugmentationPolicy | None, **parts: Any) -> OuterLoop | None:
    """Build the outer loop of a policy that learns; None for any other. Arguments are those of `OuterLoop`."""
    return OuterLoop(config, policy=policy, **parts) if isinstance(policy, Policy) else None


def _health(step: int, outer: OuterStep) -> dict[str, Any]:
    """Return a row of outer.csv."""
    stats = outer.stats
    names = ("outer_loss", "v_norm", "q_norm", "residual", "grad_norm", "products")
    numbers = {name: getattr(stats, name) for name in names}
    signal = {f"signal_{kind}": ratio for kind, ratio in outer.signal.items() if math.isfinite(ratio)}
    return {"step": step, **numbers, **signal, "status": stats.status.name.lower(), "applied": int(outer.applied)}


def _coin(seed: int, update: int) -> float:
    """Return -1 or 1 by the number of the update alone, so that a resumed run has the same signs."""
    return -1.0 if random.Random(f"{seed} {update}").random() < 0.5 else 1.0


def _pathwise(settings: OuterConfig, batch_size: int) -> int | None:
    # The gradient of magnitudes has by far the least noise: a part of the images is enough for it.
    if settings.pathwise_batch_size is not None or settings.model_mode == "train":
        return settings.pathwise_batch_size
    return max((settings.train_batch_size or batch_size) // 4, 32)


def _microbatch(config: TrainConfig, world: int) -> int | None:
    settings, own = config.outer, -(-config.batch_size // (config.accumulate * world))
    if (
        settings.microbatch is not None
        or settings.model_mode == "train"
        or settings.solver in ("neumann", "gauss-newton")
    ):
        return settings.microbatch  # products keep the activations of all parts, so that parts save no memory
    # As many images as in a training pass fit. But very many parts make a long graph, and slow passes of few images.
    most = max(settings.batch_size or 0, settings.train_batch_size or 0, config.batch_size)
    return max(own, -(-most // (_MOST_PARTS * world)))


def _solver(settings: OuterConfig) -> Deflated | GaussNewton | Neumann | Identity:
    match settings.solver:
        case "deflated":
            return Deflated(settings.history, settings.scale, settings.damping)
        case "gauss-newton":
            return GaussNewton(settings.steps, settings.damping, settings.scale)
        case "neumann":
            return Neumann(settings.steps, settings.scale, settings.tolerance)
        case "identity":
            return Identity(settings.scale)
