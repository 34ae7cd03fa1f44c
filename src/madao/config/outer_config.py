"""The settings of outer steps, which learn the policy."""

import dataclasses
import math
from typing import Literal

from madao.config.checks import at_least, fraction
from madao.config.fields import setting
from madao.errors import UserError


@dataclasses.dataclass(frozen=True)
class OuterConfig:
    """The learning of the policy, for the method learned.

    The budget decides about all settings that are left open. Settings that are given stay as they are, and the plan
    follows them.

    Args:
        budget: Part of training's work that learning may cost. When outer steps come, on how many images and with which
            learning rate follows from it, and is printed before training. Learning may always cost as much as a CPU
            computes in about 15 seconds. 0 for no plan: settings that are left open then have fixed values.
        estimator: Estimator of the policy's gradient. The estimator influence scores draws by the influence of each
            image on the validation loss; relaxed (the paper's) differentiates through the operations.
        solver: Approximation of the inverse Hessian: deflated (from recent training gradients, without Hessian
            products), gauss-newton (conjugate gradients), neumann (the paper's series), or identity (no correction).
        baseline: Value that is subtracted from each image's influence to reduce noise: leave-one-out (mean of the other
            images), class-mean, unaugmented (needs one more pass), or same-loss. The last is the mean over images with
            a similar loss, so that hard images are not favoured.
        model_mode: Mode of the model in the training loss of outer steps: eval, or train (the paper's).
        every: Number of training steps between outer steps; s in the paper. By default as the budget allows; 10 without
            a budget.
        warmup: Number of epochs before the first outer step; w in the paper. By default a fifth of all epochs.
        warmup_augment: Augmentation during warm-up: policy (the initial policy, as in the paper's appendix) or none (as
            in the paper's text). With none, operations may look good only because the model has not seen them.
        optimizer: Optimizer of the policy: adam (without momentum) or rmsprop (the paper's). Unlike those of rmsprop,
            the first steps of adam are no longer than the others.
        lr: Learning rate of the policy. By default such that it can move far in the number of outer steps; 0.03 without
            a budget.
        guard: Protection against noise. A parameter of the policy leaves its initial value once it has walked this many
            times as far as noise alone would carry it; 0 for no guard. Needs the optimizer adam. By default 1; 0
            without a budget.
        decay: Lower the learning rate of the policy to zero along a cosine.
        batch_size: Number of validation images in each outer step. By default as the budget allows; the training batch
            size without a budget.
        train_batch_size: Number of training images in each outer step. More images make its gradient less noisy, but
            the step slower. By default as the budget allows; the batch that was just trained on without a budget.
        curvature_batch_size: Number of these images that the solver computes curvature from or, for deflated, the
            gradient that it removes. By default a quarter; all without a budget.
        pathwise_batch_size: Number of these images that the influence estimator differentiates magnitudes over. It only
            scores the others, which takes less time and memory. By default an eighth, or without a budget a quarter, at
            least 32; all with the model in mode train, where BatchNorm makes images depend on each other.
        steps: Number of terms of the Neumann series (J in the paper) or of conjugate gradient steps, of which 10 are
            better.
        tolerance: Relative error up to which the Neumann series may leave out high powers of the Hessian, measured at
            every tenth outer step; 0 to compute all of them.
        scale: Step size of the Neumann series. For other solvers, only a factor of the gradient.
        damping: Damping of the solver. deflated keeps more of the directions of training gradients if it is larger,
            gauss-newton more of the directions of large curvature.
        history: Number of training gradients that the deflated solver stores. Each takes half the memory of the model,
            on the device and in checkpoints.
        learn: Part of the policy that is learned: all, selection (only the choice of operations), or strength (only
            how often and how strongly they apply). The rest keeps its initial value.
        init_decay: Pull of the policy towards its initial value, for example 0.3; needs the optimizer adam. Larger
            values keep the policy more varied where there is little evidence; 0 for no pull.
        sign: Direction of outer steps: descent, or random, a control that draws the sign of each step.
        average: Decay of an average of the weights at which outer steps are taken, for example 0.9; 0 for the current
            weights.
        clip: Largest norm of the policy's gradient. By default no limit.
        microbatch: Largest number of images in one pass of the outer step. Lower it if the outer step runs out of
            memory. By default the size of a training pass, at least a sixteenth of the images; all images with the
            solvers neumann and gauss-newton, and with the model in mode train.
    """

    budget: float = 0.1
    estimator: Literal["influence", "relaxed"] = "influence"
    solver: Literal["deflated", "gauss-newton", "neumann", "identity"] = "deflated"
    baseline: Literal["leave-one-out", "class-mean", "unaugmented", "same-loss"] = "leave-one-out"
    model_mode: Literal["eval", "train"] = setting("eval", is_option=False)
    every: int | None = None
    warmup: float | None = None
    warmup_augment: Literal["none", "policy"] = setting("policy", is_option=False)
    optimizer: Literal["adam", "rmsprop"] = setting("adam", is_option=False)
    lr: float | None = None
    guard: float | None = setting(None, is_option=False)
    decay: bool = setting(False, is_option=False)
    batch_size: int | None = None
    train_batch_size: int | None = None
    curvature_batch_size: int | None = setting(None, is_option=False)
    pathwise_batch_size: int | None = setting(None, is_option=False)
    steps: int = setting(5, is_option=False)
    tolerance: float = setting(0.01, is_option=False)
    scale: float = 0.1
    damping: float = setting(0.01, is_option=False)
    history: int = setting(16, is_option=False)
    learn: Literal["all", "selection", "strength"] = setting("all", is_option=False)
    init_decay: float = setting(0.0, is_option=False)
    sign: Literal["descent", "random"] = setting("descent", is_option=False)
    average: float = setting(0.0, is_option=False)
    clip: float | None = setting(None, is_option=False)
    microbatch: int | None = None

    def __post_init__(self) -> None:
        for name in ("every", "batch_size", "train_batch_size", "microbatch", "history"):
            at_least(f"outer.{name}", getattr(self, name), 1)
        for name in ("curvature_batch_size", "pathwise_batch_size"):
            at_least(f"outer.{name}", getattr(self, name), 1)
        for name in ("budget", "warmup", "lr", "guard", "steps", "init_decay"):
            at_least(f"outer.{name}", getattr(self, name), 0)
        for name in ("init_decay", "guard"):
            value = getattr(self, name) or 0.0
            if not value < math.inf:
                raise UserError(f"`outer.{name}` must be finite, got {value}")
            if value and self.optimizer != "adam":
                raise UserError(f"`outer.{name}` needs `outer.optimizer=adam`, got {self.optimizer}")
        if self.solver == "gauss-newton":
            at_least("outer.steps", self.steps, 1)
        fraction("outer.tolerance", self.tolerance)
        fraction("outer.average", self.average)
        for name in ("scale", "damping", "clip"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise UserError(f"`outer.{name}` must be above 0, got {value}")


UNPLANNED = {"every": 10, "lr": 0.03, "guard": 0.0}
"""Values without a budget of settings that are left open."""


def warmup_epochs(warmup: float | None, epochs: float) -> float:
    """Return the number of epochs before the first outer step: `outer.warmup`, by default a fifth of all epochs."""
    return epochs / 5 if warmup is None else warmup
