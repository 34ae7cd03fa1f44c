"""When outer steps are due in a training loop that is not madao's own, and on how many images."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from madao.outer.budget import (
    FREE_FLOPS,
    GUARD,
    LARGEST_LR,
    LARGEST_STEP,
    MOST_PARTS,
    PRODUCT,
    REACH,
    Workload,
    plan_outer,
    step_passes,
    step_sizes,
)
from madao.outer.compute_options import ComputeOptions
from madao.outer.flops import pass_flops
from madao.outer.policy_adam import PolicyAdam
from madao.outer.problem_builder import ProblemBuilder
from madao.policy import Policy
from madao.policy.base_augmentation import normalise


@dataclasses.dataclass(frozen=True)
class OuterSchedule:
    """When outer steps are due and on how many images, for a training loop of any length.

    Attributes:
        every: Training steps from one outer step to the next; None to take one as soon as it is paid for.
        warmup: Training steps before the first outer step.
        train_images: Training images of an outer step; None for the batch that was just trained on.
        validation_images: Validation images of an outer step; None for one batch of the loader.
        passes: Work of an outer step.
        income: Work that a training step pays for.
        free: Work that is paid for from the start.
        gap: Least number of training steps from one outer step to the next.
    """

    every: int | None = None
    warmup: int = 0
    train_images: int | None = None
    validation_images: int | None = None
    passes: float = 0.0
    income: float = 0.0
    free: float = 0.0
    gap: int = 1

    def is_due(self, call: int, done: int, last: int) -> bool:
        """Return whether a training step leads to an outer step.

        Args:
            call: Number of the training step, from 1 on.
            done: Outer steps so far.
            last: Training step that led to the last of them; 0 before the first.
        """
        if call <= self.warmup:
            return False
        if self.every is not None:
            return call % self.every == 0
        return call - last >= self.gap and (done + 1) * self.passes <= self.income * call + self.free


def _open_schedule(budget: float, work: Workload, known: Mapping[str, Any]) -> tuple[OuterSchedule, dict[str, int]]:
    """Return the schedule for a training of unknown length, and the images of an outer step, named as in `OuterPlan`.

    An outer step comes as soon as the budget pays for it, but not before its training images are new.
    """
    sizes = step_sizes(LARGEST_STEP // 2, work, known)
    schedule = OuterSchedule(
        warmup=work.warmup,
        train_images=sizes["train_batch_size"],
        validation_images=sizes["batch_size"],
        passes=step_passes(sizes, work),
        income=budget * work.batch_size,
        free=FREE_FLOPS / work.flops,
        gap=-(-sizes["train_batch_size"] // work.batch_size),
    )
    return schedule, sizes


def open_lr(done: int) -> float:
    """Return the learning rate of the next outer step of an open schedule: all steps together reach about as far."""
    return min(LARGEST_LR, REACH / (done + 1))


@dataclasses.dataclass(frozen=True)
class ChosenSchedule:
    """A schedule that a budget has decided.

    Attributes:
        schedule: When outer steps are due.
        compute: Options of outer steps, in passes as large as those of training if they need not be one.
        lr: The learning rate of the policy; None if it changes, by `open_lr`.
        learns: Whether the policy will learn at all.
        description: A line for people.
    """

    schedule: OuterSchedule
    compute: ComputeOptions
    lr: float | None
    learns: bool
    description: str


def choose_schedule(
    builder: ProblemBuilder,
    budget: float,
    count: int,
    images: Tensor,
    total_steps: int | None,
    warmup: int | None,
    known: Mapping[str, int],
) -> ChosenSchedule:
    """Return the schedule that a budget pays for.

    Args:
        builder: The builder of outer steps.
        budget: The part of training's work that learning may cost.
        count: Images of a training step, of all processes together.
        images: Images of the training loop, whose shape matters alone.
        total_steps: Training steps of the whole training, if they are known.
        warmup: Training steps before the first outer step. By default a fifth of `total_steps`.
        known: Numbers of images that somebody has chosen, named as in `OuterPlan`.
    """
    solver, compute = builder.solver, builder.compute
    one = normalise(images[:1])
    seen = one if builder.transform is None else builder.transform(one)
    scores = builder.estimator.scores_draws and compute.inner_mode == "eval"
    work = Workload(
        steps=total_steps or 0,
        warmup=(total_steps or 0) // 5 if warmup is None else warmup,
        batch_size=count,
        train_images=LARGEST_STEP,
        validation_images=LARGEST_STEP,
        flops=pass_flops(builder.model, tuple(seen.shape[1:])),
        removed_cost=1.0 if solver.needs_independent_draw else PRODUCT * getattr(solver, "steps", 0),
        all_pathwise=not scores,
    )
    lr, learns, description = None, True, "an outer step whenever the budget pays for it"
    if total_steps is None:
        schedule, sizes = _open_schedule(budget, work, known)
    else:
        plan = plan_outer(budget, work, known)
        lr, learns, sizes = plan.lr, plan.steps > 0, step_sizes(plan.train_batch_size, work, known)
        schedule = OuterSchedule(plan.every, work.warmup, plan.train_batch_size, plan.batch_size)
        description = f"{plan.steps} outer steps, one every {plan.every} training steps after {work.warmup}"
    description += f", on {sizes['train_batch_size']} training and {sizes['batch_size']} validation images"
    if not learns:
        description = f"the policy will not learn: the least that is worth while needs budget={plan.needed:.2g}"
    chosen: dict[str, Any] = {}
    if compute.curvature_batch is None:
        chosen["curvature_batch"] = sizes["curvature_batch_size"]
    if compute.pathwise_batch is None and scores:
        chosen["pathwise_batch"] = sizes["pathwise_batch_size"]
    if compute.microbatch is None and scores and solver.capturable:
        most = max(sizes["train_batch_size"], sizes["batch_size"])
        chosen["microbatch"] = -(-max(count, -(-most // MOST_PARTS)) // builder.ranks.world)
    return ChosenSchedule(schedule, dataclasses.replace(compute, **chosen), lr, learns, description)


def default_optimizer(policy: Policy, planned: bool) -> torch.optim.Optimizer:
    """Return the optimizer of a policy: for planned outer steps `PolicyAdam`, else that of the paper."""
    if not planned:
        return torch.optim.RMSprop(policy.parameters(), lr=1e-2)
    # The weights of a network are no evidence by themselves.
    return PolicyAdam(policy.parameters(), guard=0.0 if policy.uses_image else GUARD)
