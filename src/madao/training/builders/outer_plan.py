"""The settings of outer steps, with a plan for those that are left open."""

import dataclasses

from torch import nn

from madao.config.outer_config import UNPLANNED, OuterConfig
from madao.config.train_config import TrainConfig
from madao.outer.budget import GUARD, PRODUCT, OuterPlan, Workload, plan_outer
from madao.outer.flops import pass_flops
from madao.training.splits import Splits


def plan_settings(
    config: TrainConfig, network: nn.Module, splits: Splits, steps_per_epoch: int, warmup: int
) -> tuple[OuterConfig, OuterPlan | None]:
    """Return the settings of outer steps, all of them decided, and the plan that decided the open ones.

    Args:
        config: The settings of the run.
        network: The model.
        splits: The images.
        steps_per_epoch: The training steps of an epoch.
        warmup: The training steps before the first outer step.

    Returns:
        The settings, and None for the plan without a budget.
    """
    settings = config.outer
    if not settings.budget or splits.validation is None:
        open_ones = {name: value for name, value in UNPLANNED.items() if getattr(settings, name) is None}
        return dataclasses.replace(settings, **open_ones), None
    work = Workload(
        steps=config.epochs * steps_per_epoch,
        warmup=warmup,
        batch_size=min(config.batch_size, len(splits.train)),
        train_images=len(splits.train),
        validation_images=len(splits.validation),
        flops=pass_flops(network, (splits.channels, splits.size, splits.size)),
        removed_cost=_removed_cost(settings),
        all_pathwise=settings.estimator == "relaxed" or settings.model_mode == "train",
    )
    names = {field.name for field in dataclasses.fields(OuterPlan)} & {*vars(settings)}
    known = {name: getattr(settings, name) for name in names if getattr(settings, name) is not None}
    plan = plan_outer(settings.budget, work, known)
    chosen = {name: getattr(plan, name) for name in names}
    if settings.model_mode == "train" and settings.pathwise_batch_size is None:
        del chosen["pathwise_batch_size"]  # all, whatever their number
    if settings.guard is None:
        # The weights of a network are no evidence by themselves.
        chosen["guard"] = GUARD if settings.optimizer == "adam" and config.augment.conditional_on != "image" else 0.0
    return dataclasses.replace(settings, **chosen), plan


def _removed_cost(settings: OuterConfig) -> float:
    match settings.solver:
        case "deflated":
            return 1.0
        case "identity":
            return 0.0
        case _:
            return PRODUCT * settings.steps
