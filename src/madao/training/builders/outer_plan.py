"""The settings of outer steps, with decisions on those that are left open."""

import dataclasses
from typing import Any

import torch
from torch import nn

from madao.config.outer_config import UNPLANNED, OuterConfig
from madao.config.train_config import TrainConfig
from madao.outer.budget import GUARD, MOST_PARTS, PRODUCT, OuterPlan, Workload, plan_outer
from madao.outer.flops import pass_flops
from madao.outer.policy_adam import PolicyAdam
from madao.policy import Policy
from madao.training.splits import Splits


def decide_settings(
    config: TrainConfig, network: nn.Module, splits: Splits, steps_per_epoch: int, warmup: int, world: int
) -> tuple[OuterConfig, OuterPlan | None]:
    """Return the settings of outer steps, and the plan that decided those which were left open.

    Args:
        config: The settings of the run.
        network: The model.
        splits: The images.
        steps_per_epoch: The training steps of an epoch.
        warmup: The training steps before the first outer step.
        world: The number of processes.

    Returns:
        The settings, and None for the plan without a budget.
    """
    settings, plan = config.outer, None
    if settings.budget and splits.validation is not None:
        plan = plan_outer(
            settings.budget,
            Workload(
                steps=config.epochs * steps_per_epoch,
                warmup=warmup,
                batch_size=min(config.batch_size, len(splits.train)),
                train_images=len(splits.train),
                validation_images=len(splits.validation),
                flops=pass_flops(network, (splits.channels, splits.size, splits.size)),
                removed_cost=_removed_cost(settings),
                all_pathwise=settings.estimator == "relaxed" or settings.model_mode == "train",
            ),
            {name: value for name, value in vars(settings).items() if value is not None},
        )
        settings = _planned(settings, plan, config.augment.conditional_on == "image")
    else:
        open_ones: dict[str, Any] = {
            name: value for name, value in UNPLANNED.items() if getattr(settings, name) is None
        }
        settings = dataclasses.replace(settings, **open_ones)
    return dataclasses.replace(
        settings,
        pathwise_batch_size=_pathwise(settings, config.batch_size),
        microbatch=_microbatch(settings, config, world),
    ), plan


def build_policy_optimizer(settings: OuterConfig, policy: Policy) -> torch.optim.Optimizer:
    """Build the optimizer of a policy from settings that are decided."""
    assert settings.lr is not None
    assert settings.guard is not None
    if settings.optimizer == "adam":
        return PolicyAdam(policy.parameters(), settings.lr, settings.init_decay, settings.guard)
    return torch.optim.RMSprop(policy.parameters(), lr=settings.lr)


def _planned(settings: OuterConfig, plan: OuterPlan, has_network: bool) -> OuterConfig:
    names = {field.name for field in dataclasses.fields(OuterPlan)} & vars(settings).keys() - {"steps"}
    if settings.model_mode == "train":
        names -= {"pathwise_batch_size"}  # all, whatever their number
    chosen: dict[str, Any] = {name: getattr(plan, name) for name in names if getattr(settings, name) is None}
    if settings.guard is None:
        # The weights of a network are no evidence by themselves.
        chosen["guard"] = GUARD if settings.optimizer == "adam" and not has_network else 0.0
    return dataclasses.replace(settings, **chosen)


def _removed_cost(settings: OuterConfig) -> float:
    match settings.solver:
        case "deflated":
            return 1.0
        case "identity":
            return 0.0
        case _:
            return PRODUCT * settings.steps


def _pathwise(settings: OuterConfig, batch_size: int) -> int | None:
    # The gradient of magnitudes has by far the least noise: a part of the images is enough for it.
    if settings.pathwise_batch_size is not None or settings.model_mode == "train":
        return settings.pathwise_batch_size
    return max((settings.train_batch_size or batch_size) // 4, 32)


def _microbatch(settings: OuterConfig, config: TrainConfig, world: int) -> int | None:
    own = -(-config.batch_size // (config.accumulate * world))
    if (
        settings.microbatch is not None
        or settings.model_mode == "train"
        or settings.solver in ("neumann", "gauss-newton")
    ):
        return settings.microbatch  # products keep the activations of all parts, so that parts save no memory
    # As many images as in a training pass fit. But very many parts make a long graph, and slow passes of few images.
    most = max(settings.batch_size or 0, settings.train_batch_size or 0, config.batch_size)
    return max(own, -(-most // (MOST_PARTS * world)))
