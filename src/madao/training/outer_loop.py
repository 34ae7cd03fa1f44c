"""How the trainer feeds the policy's optimizer: which images, when, and by which estimator."""

import functools
import math
import random
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

from madao.config.train_config import OuterConfig, TrainConfig
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
from madao.policy import BaseAugmentation, Policy
from madao.tasks import Task
from madao.training.ema import WeightAverage
from madao.training.inner_step import InnerResult, crop_and_flip, cropped_batch
from madao.training.schedule import cosine
from madao.training.splits import Splits

_BASELINES: dict[str, Baseline] = {
    "leave-one-out": LeaveOneOut(),
    "class-mean": ClassMean(),
    "same-loss": SameLoss(),
    "unaugmented": Unaugmented(),
}

_MOST_PARTS = 16


class OuterLoop:
    """The outer problem of a run.

    Args:
        config: Of the run.
        policy: What learns.
        network: What is trained.
        task: What is learned.
        standard: Crop, flip, normalise and Cutout.
        splits: The images.
        train_batches: The order of the training images.
        autocast: Half-precision dtype of the forward passes, if any.
        awaited: What watches how long outer steps wait for their images.
    """

    def __init__(
        self,
        config: TrainConfig,
        policy: Policy,
        network: nn.Module,
        task: Task,
        standard: BaseAugmentation,
        splits: Splits,
        train_batches: Batches,
        autocast: torch.dtype | None = None,
        awaited: Callable[[Iterator[Any]], Iterator[Any]] = iter,
    ) -> None:
        settings = config.outer
        self.settings, self.standard, self.task = settings, standard, task
        if task.targets_follow_policy and settings.baseline == "class-mean":
            raise UserError(f"--outer.baseline class-mean needs a class for every image, which {task.name} has not")
        if settings.learn != "all":
            for name, parameter in policy.named_parameters():
                parameter.requires_grad_(name.startswith("selection") == (settings.learn == "selection"))
        self.network = network
        self.average = WeightAverage(network, settings.average, ramp=False) if settings.average else None
        self.optimizer: torch.optim.Optimizer = (
            PolicyAdam(policy.parameters(), settings.lr, settings.init_decay)
            if settings.optimizer == "adam"
            else torch.optim.RMSprop(policy.parameters(), lr=settings.lr)
        )
        epochs = config.epochs / 5 if settings.warmup is None else settings.warmup
        self.warmup = round(epochs * len(train_batches))
        self.microbatch = _microbatch(config, ProcessGroup.current().world)
        self.outer = PolicyOptimizer(
            policy,
            network if self.average is None else self.average.module.requires_grad_(True),
            task.outer_losses,
            every=settings.every,
            warmup=self.warmup,
            optimizer=self.optimizer,
            solver=_solver(settings),
            estimator=Relaxed() if settings.estimator == "relaxed" else Influence(_BASELINES[settings.baseline]),
            transform=standard.normalise,
            weight_decay=config.optimizer.weight_decay,
            clip=settings.clip,
            seed=config.seed,
            views=task.views,
            soft_targets=task.soft_targets if task.targets_follow_policy else None,
            compute=ComputeOptions(
                microbatch=self.microbatch,
                curvature_batch=settings.curvature_batch_size,
                pathwise_batch=_pathwise(settings, config.batch_size),
                autocast=autocast,
                inner_mode=settings.model_mode,
                check_every=10 if settings.solver == "neumann" else 0,
            ),
        )
        if settings.sign == "random":
            self.outer.sign = functools.partial(_coin, config.seed)
        device, workers = train_batches.device, config.data.processes
        if splits.validation is None:
            raise SharedError(
                "--data.val_fraction 0 leaves no images to learn a policy from; name one that is learned already, by "
                "--augment.method RUN/policy.json, or set some images aside"
            )
        self.ranks = self.outer.ranks
        batches = functools.partial(
            Batches, device=device, workers=workers, rank=self.ranks.rank, world=self.ranks.world
        )
        self._validation = batches(splits.validation, settings.batch_size or config.batch_size, seed=config.seed)
        self._train = (
            batches(splits.train, settings.train_batch_size, seed=config.seed + 1)
            if settings.train_batch_size is not None
            else None
        )
        for taken in (self._validation, self._train):
            if taken is not None and taken.batch_size < self.ranks.world:
                raise SharedError(
                    f"outer steps of {taken.batch_size} images cannot be shared by {self.ranks.world} processes; lower "
                    "--devices, or raise --outer.batch_size and --outer.train_batch_size"
                )
        self._awaited = awaited
        self._streams: tuple[Iterator[Any], Iterator[Any] | None] | None = None
        self.last: OuterStep | None = None
        self.record: list[dict[str, Any]] = []  # of outer steps that are not in the run directory yet
        self.at_work = False
        sizes = (self._validation.batch_size, (self._train or train_batches).batch_size)
        self.largest_pass = min(max(sizes), self.microbatch or max(sizes))

    def applies(self, step: int) -> bool:
        """Whether training images go through the policy at a step."""
        return step >= self.warmup or self.settings.warmup_augment == "policy"

    def step(self, progress: float, trained: InnerResult) -> None:
        """Count an inner step; on every s-th, update the policy.

        Args:
            progress: Part of training that is over.
            trained: The step.
        """
        cropped, targets, draw = trained.cropped, trained.targets, trained.draw
        if not self.outer.tick():
            return
        if self.settings.decay:
            for group in self.optimizer.param_groups:
                group["lr"] = self.settings.lr * cosine(progress)
        validation, train = self._next_streams()
        if train is not None:
            assert self._train is not None
            place = shard_of(self._train.batch_size, self.ranks)
            images, given = next(train)
            draw, cropped, targets = cropped_batch(self.task, self.standard, images, given, place)
        outer_images, outer_targets = next(validation)
        place = shard_of(self._validation.batch_size, self.ranks)
        batch = self.task.outer(
            self.standard, outer_images, outer_targets, lambda: crop_and_flip(self.standard, outer_images, place)[1]
        )
        self.at_work = True
        self.ranks.broadcast_(self.network.buffers())
        if self.average is not None:
            if self.outer.updates + self.outer.skipped == 0:
                self.average.module.load_state_dict(self.network.state_dict())  # nothing of before it was trained
            self.average.update(self.network)
        self.last = self.outer.update((cropped, targets, draw.hole_y, draw.hole_x), batch, self.standard.after_policy)
        self.at_work = False
        self.record.append(_health(self.outer.calls, self.last))

    def check_alike(self) -> None:
        """Raise unless every process has the same policy, bit for bit: a check of this program, not of its user."""
        if self.ranks.world == 1:
            return
        policy = self.outer.policy
        flat = torch.cat([value.detach().flatten().float() for value in (*policy.parameters(), *policy.buffers())])
        if not torch.equal(self.ranks.all_reduce_max(flat), -self.ranks.all_reduce_max(-flat)):
            raise RuntimeError(f"the policy of process {self.ranks.rank} is not that of the others")

    def state_dict(self) -> dict[str, Any]:
        """What `load_state_dict` needs."""
        average = None if self.average is None else self.average.state_dict()
        return {**self.outer.state_dict(), "record": list(self.record), "average": average}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a saved state."""
        self.outer.load_state_dict(state)
        self.record = list(state.get("record", ()))
        if self.average is not None and state.get("average") is not None:
            self.average.load_state_dict(state["average"])
        self._streams = None

    def _next_streams(self) -> tuple[Iterator[Any], Iterator[Any] | None]:
        """Where the images of outer steps come from, at the place where a run left off."""
        if self._streams is None:
            done = self.outer.updates + self.outer.skipped
            train = None if self._train is None else self._awaited(self._train.stream(done))
            self._streams = self._awaited(self._validation.stream(done)), train
        return self._streams


def _health(step: int, outer: OuterStep) -> dict[str, Any]:
    """One row of the run directory's outer.csv."""
    stats = outer.stats
    names = ("outer_loss", "v_norm", "q_norm", "residual", "grad_norm", "products")
    numbers = {name: getattr(stats, name) for name in names}
    signal = {f"signal_{kind}": ratio for kind, ratio in outer.signal.items() if math.isfinite(ratio)}
    return {"step": step, **numbers, **signal, "status": stats.status.name.lower(), "applied": int(outer.applied)}


def _coin(seed: int, update: int) -> float:
    """Whether an update descends or climbs: by its number alone, so that a resumed run throws the same coins."""
    return -1.0 if random.Random(f"{seed} {update}").random() < 0.5 else 1.0


def _pathwise(settings: OuterConfig, batch_size: int) -> int | None:
    # Of all that is learned magnitudes have by far the clearest signal: of them a part of the images says enough.
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
        return settings.microbatch  # what products keep of all parts they keep of all images
    # What trains fits. Of very many parts a graph would be long, and passes of very few images slow.
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
