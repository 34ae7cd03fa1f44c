"""The outer loop of a run, from its settings."""

import dataclasses
import functools
import random

import torch
from torch import nn

from madao.config.outer_config import OuterConfig, warmup_epochs
from madao.config.train_config import TrainConfig
from madao.data import Batches
from madao.distributed.group import ProcessGroup
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
from madao.outer import ComputeOptions, PolicyOptimizer
from madao.policy import AugmentationPolicy, BaseAugmentation, Policy
from madao.tasks import Task
from madao.training.builders.outer_plan import build_policy_optimizer, decide_settings
from madao.training.ema import WeightAverage
from madao.training.monitor.profiler import Profiler
from madao.training.outer_loop import OuterLoop
from madao.training.splits import Splits

_BASELINES: dict[str, Baseline] = {
    "leave-one-out": LeaveOneOut(),
    "class-mean": ClassMean(),
    "same-loss": SameLoss(),
    "unaugmented": Unaugmented(),
}


def build_outer_loop(
    config: TrainConfig,
    *,
    policy: AugmentationPolicy | None,
    network: nn.Module,
    task: Task,
    base_augmentation: BaseAugmentation,
    splits: Splits,
    train_batches: Batches,
    profiler: Profiler,
    autocast: torch.dtype | None,
) -> OuterLoop | None:
    """Build the outer loop of a policy that learns; None for any other.

    Args:
        config: The settings of the run.
        policy: The policy, if any.
        network: The model.
        task: The task.
        base_augmentation: Crop, flip, normalise and Cutout.
        splits: The images.
        train_batches: The batches of the inner steps.
        profiler: Measures outer steps.
        autocast: The half-precision dtype of forward passes, if any.

    Raises:
        UserError: The settings do not suit the task or the images.
    """
    if not isinstance(policy, Policy):
        return None
    warmup = round(warmup_epochs(config.outer.warmup, config.epochs) * len(train_batches))
    ranks = ProcessGroup.current()
    settings, plan = decide_settings(config, network, splits, len(train_batches), warmup, ranks.world)
    config = dataclasses.replace(config, outer=settings)
    assert settings.every is not None
    if task.targets_follow_policy and settings.baseline == "class-mean":
        raise UserError(
            f"`outer.baseline=class-mean` needs a class for every image, and {task.name} has none; choose another "
            "`outer.baseline`"
        )
    if settings.learn != "all":
        for name, parameter in policy.named_parameters():
            parameter.requires_grad_(name.startswith("selection") == (settings.learn == "selection"))
    ema = WeightAverage(network, settings.average, ramp=False) if settings.average else None
    outer = PolicyOptimizer(
        policy,
        network if ema is None else ema.module.requires_grad_(True),
        task.outer_losses,
        every=settings.every,
        warmup=warmup,
        optimizer=build_policy_optimizer(settings, policy),
        solver=_solver(settings),
        estimator=Relaxed() if settings.estimator == "relaxed" else Influence(_BASELINES[settings.baseline]),
        transform=base_augmentation.normalise,
        weight_decay=config.optimizer.weight_decay if config.optimizer.name == "sgd" else 0.0,
        clip=settings.clip,
        seed=config.seed,
        views=task.views,
        soft_targets=task.soft_targets if task.targets_follow_policy else None,
        compute=ComputeOptions(
            microbatch=settings.microbatch,
            curvature_batch=settings.curvature_batch_size,
            pathwise_batch=settings.pathwise_batch_size,
            autocast=autocast,
            inner_mode=settings.model_mode,
            check_every=10 if settings.solver == "neumann" else 0,
        ),
    )
    outer.primes = plan is not None
    if settings.sign == "random":
        outer.sign = functools.partial(_coin, config.seed)
    validation, own_train = _batches(config, splits, train_batches, ranks)
    return OuterLoop(
        outer,
        settings,
        plan=plan,
        network=network,
        task=task,
        base_augmentation=base_augmentation,
        profiler=profiler,
        validation_batches=validation,
        train_batches=own_train,
        ema=ema,
    )


def _batches(
    config: TrainConfig, splits: Splits, train_batches: Batches, ranks: ProcessGroup
) -> tuple[Batches, Batches | None]:
    """Build the batches of validation images, and of training images if outer steps have their own."""
    if splits.validation is None:
        raise SharedError(
            "`data.val_fraction=0` leaves no images to learn a policy from; name a policy that is learned already, by "
            "`augment.method=RUN/policy.json`, or set some images aside"
        )
    settings, workers = config.outer, config.data.processes
    batches = functools.partial(
        Batches, device=train_batches.device, workers=workers, rank=ranks.rank, world=ranks.world
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
                f"outer steps of {own.batch_size} images cannot be shared by {ranks.world} processes; lower `devices`, "
                "or raise `outer.batch_size` and `outer.train_batch_size`"
            )
    return validation, train


def _coin(seed: int, update: int) -> float:
    """Return -1 or 1 by the number of the update alone, so that a resumed run has the same signs."""
    return -1.0 if random.Random(f"{seed} {update}").random() < 0.5 else 1.0


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
