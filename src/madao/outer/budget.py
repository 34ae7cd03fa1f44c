"""The plan of outer steps that a budget pays for: when they come, on how many images, and how far each moves.

Work is counted in *passes*: one forward and backward pass of one image. So a plan depends on numbers of images alone,
not on seconds, and a resumed run has the same plan.
"""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

PASSES = {"validation": 1.0, "removed": 1.0, "scored": 0.9, "pathwise": 2.2}
"""Work for one image, in passes: the gradient of the validation loss, the training gradient that `Deflated` removes,
the influence by forward mode, and the influence with its derivative in the magnitudes. CPU time of one thread, torch
2.15, in this order: small CNN at 16 pixels 0.9, 0.9, 0.9, 2.2; ResNet-18 at 64 pixels 1.0, 1.0, 0.9, 2.1 and at 224
pixels 1.0, 1.0, 1.0, 2.2; WideResNet-28-2 at 32 pixels 0.9, 0.9, 0.9, 2.4."""

FREE_FLOPS = 2e12
"""Work that learning may always cost, whatever the budget: about 15 seconds of one CPU core."""

PRODUCT = 3.0
"""Work of a product with the Hessian or the Gauss-Newton matrix, as a multiple of a gradient's."""
MOST_PARTS = 16
"""The most passes into which the images of an outer step are divided by default."""

REACH = 12.0
"""How far the logits of the policy can move: learning rate times number of outer steps."""
LARGEST_LR = 0.35
GUARD = 1.0
"""The guard of `PolicyAdam`."""
STEPS, LARGEST_STEP = 96, 1024
"""Outer steps of a plan that can afford them, and their training images. A larger budget pays for more steps. With 48
on digits, rotation was preferred to a planted translation."""
FEWEST_STEPS, SMALLEST_STEP = 12, 128
"""Outer steps, and their training images, below which learning is not worth its work."""


@dataclasses.dataclass(frozen=True)
class OuterPlan:
    """A plan of outer steps.

    Attributes:
        every: Training steps from one outer step to the next.
        lr: Learning rate of the policy.
        batch_size: Validation images of an outer step.
        train_batch_size: Training images.
        curvature_batch_size: Training images whose gradient the solver removes.
        pathwise_batch_size: Training images with a derivative in the magnitudes.
        steps: Number of outer steps; 0 if the budget pays for too few to be worth their work.
        share: Work of all outer steps, as a part of the work of training.
        needed: Least budget that pays for outer steps that are worth their work.
    """

    every: int
    lr: float
    batch_size: int
    train_batch_size: int
    curvature_batch_size: int
    pathwise_batch_size: int
    steps: int
    share: float
    needed: float


@dataclasses.dataclass(frozen=True)
class Workload:
    """The training that outer steps are planned for.

    Attributes:
        steps: Training steps.
        warmup: Those before the first outer step.
        batch_size: Images of a training step.
        train_images: Different training images.
        validation_images: Different validation images.
        flops: Floating-point operations of a pass, as `pass_flops` counts them.
        removed_cost: Work for one image from which the solver takes curvature, as a multiple of a gradient's.
        all_pathwise: Whether all training images have a derivative in the magnitudes.
    """

    steps: int
    warmup: int
    batch_size: int
    train_images: int
    validation_images: int
    flops: float
    removed_cost: float = 1.0
    all_pathwise: bool = False

    @property
    def passes(self) -> int:
        """Work of training."""
        return self.steps * self.batch_size


def plan_outer(budget: float, work: Workload, known: Mapping[str, Any]) -> OuterPlan:
    """Plan few outer steps on many images, as many of both as the budget pays for.

    Args:
        budget: The part of training's work that learning may cost, apart from `FREE_FLOPS`.
        work: The training.
        known: Fields of `OuterPlan` that somebody has chosen. The plan keeps them.

    Example:
        >>> plan = plan_outer(0.1, Workload(21_000, 4_200, 128, 45_000, 5_000, flops=3e9), {})
        >>> plan.steps, plan.train_batch_size
        (144, 1024)
    """
    learning = max(work.steps - work.warmup, 0)
    largest, smallest = (min(size, work.train_images) for size in (LARGEST_STEP, SMALLEST_STEP))
    full = step_passes(step_sizes(largest, work, known), work)
    allowed = max(budget * work.passes, min(FREE_FLOPS / work.flops, STEPS * full))
    fewest = min(FEWEST_STEPS, learning)
    cheapest = step_passes(step_sizes(smallest, work, known), work)
    if "every" in known:
        steps = learning // known["every"]
    else:
        # With less than STEPS of the largest steps, both their number and their size shrink by the same factor.
        shrunk = math.ceil(STEPS * math.sqrt(min(allowed / (STEPS * full), 1.0)))
        steps = min(max(int(allowed / full), shrunk), learning)
    train = largest
    while train > smallest and steps * step_passes(step_sizes(train, work, known), work) > allowed:
        train = max(train * 15 // 16, smallest)
    if "every" not in known and train == smallest:
        steps = min(int(allowed / cheapest), steps)
        steps = steps if steps >= fewest else 0
    every = known.get("every", -(-learning // steps) if steps else work.steps + 1)
    steps = work.steps // every - min(work.warmup, work.steps) // every
    sizes = step_sizes(train, work, known)
    return OuterPlan(
        every=every,
        lr=known.get("lr", min(LARGEST_LR, REACH / max(steps, 1))),
        **sizes,
        steps=steps,
        share=steps * step_passes(sizes, work) / work.passes,
        needed=fewest * cheapest / work.passes,
    )


def step_sizes(train: int, work: Workload, known: Mapping[str, Any]) -> dict[str, int]:
    """Return the images of an outer step on `train` training images."""
    train = known.get("train_batch_size", train)
    found = {
        "batch_size": min(-(-train // 2), work.validation_images),
        "train_batch_size": train,
        "curvature_batch_size": -(-train // 4),
        "pathwise_batch_size": train if work.all_pathwise else -(-train // 8),
    }
    return found | {name: known[name] for name in found if name in known}


def step_passes(sizes: Mapping[str, int], work: Workload) -> float:
    """Return the work of an outer step."""
    train = sizes["train_batch_size"]
    pathwise, removed = (min(sizes[f"{name}_batch_size"], train) for name in ("pathwise", "curvature"))
    return (
        PASSES["validation"] * sizes["batch_size"]
        + PASSES["removed"] * work.removed_cost * removed
        + PASSES["scored"] * (train - pathwise)
        + PASSES["pathwise"] * pathwise
    )
