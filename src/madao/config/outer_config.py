"""The settings by which a policy learns."""

import dataclasses
import math
from typing import Literal

from madao.config.checks import at_least, fraction
from madao.config.fields import setting
from madao.errors import UserError


@dataclasses.dataclass(frozen=True)
class OuterConfig:
    """How the policy learns, with the method madao.

    Args:
        estimator: influence (per-image influence, score function) or relaxed (the paper's).
        solver: How the inverse Hessian is applied: deflated (by the space of recent training gradients, without
            products), gauss-newton (by some steps of conjugate gradients), neumann (the paper's series), identity
            (none).
        baseline: What influences are compared with: leave-one-out, class-mean, unaugmented (one more pass), or
            same-loss: those of images that are as hard, so that being hard is no merit.
        model_mode: The model's mode in the training loss of outer steps: eval, or train (the paper's).
        every: Inner steps between two outer steps, s of the paper.
        warmup: Epochs before the first outer step, w of the paper. By default a fifth of all.
        warmup_augment: During warm-up, train with the policy as it starts (policy, the paper's appendix) or without
            it (none, the paper's text), after which operations look good that are merely new.
        optimizer: adam (without momentum: RMSprop whose first steps are no longer than the others) or rmsprop (the
            paper's).
        lr: Learning rate of the policy.
        decay: Lower it along a cosine to zero at the end.
        batch_size: Validation images in one outer step. By default the training batch size.
        train_batch_size: Training images in one outer step. By default the batch that was just trained on.
        curvature_batch_size: Of those, how many curvature is taken over, or the gradient that the deflated solver takes
            out. By default all.
        pathwise_batch_size: With influence: of those, how many the magnitudes' derivative is taken over; the others are
            only scored, which takes less time and memory. By default a quarter, at least 32; in mode train, where
            images of a batch depend on each other, all.
        steps: Terms of the Neumann series, J of the paper; steps of conjugate gradients, where 10 are better.
        tolerance: Part of the Neumann series for which high powers of the Hessian are left out, as measured at every
            tenth outer step; 0 for none.
        scale: Step of the Neumann series; a mere factor for the others.
        damping: How much the deflated solver leaves of what lies along training gradients, and gauss-newton of what
            lies along large curvature.
        history: Training gradients that the deflated solver remembers, each half as large as the model, in checkpoints
            too.
        learn: all (which operations, how often and how strongly), selection (which; the rest stays as it starts), or
            strength (how often and how strongly; all are chosen alike).
        init_decay: How much the policy is drawn back to where it started, 0.3 say, for the optimizer adam: it then
            moves as far as there is evidence and stays varied where there is little. The more, the less it moves; 0
            for none.
        sign: descent, or random: a control that goes up or down the gradient by a fair coin, as far as learning would.
        average: Take outer steps at weights averaged from outer step to outer step by this decay, 0.9 say, which see
            further than those of the moment; 0 for the weights of the moment.
        clip: Longest gradient of the policy that is used as it is. By default any.
        microbatch: Most images in one pass of the outer step. By default those of a pass of training, or a sixteenth
            of all; all in mode train, where images of a batch depend on each other, and with the solvers neumann and
            gauss-newton, whose steps are recorded in one pass only.
    """

    estimator: Literal["influence", "relaxed"] = "influence"
    solver: Literal["deflated", "gauss-newton", "neumann", "identity"] = "deflated"
    baseline: Literal["leave-one-out", "class-mean", "unaugmented", "same-loss"] = "leave-one-out"
    model_mode: Literal["eval", "train"] = setting("eval", is_option=False)
    every: int = 10
    warmup: float | None = None
    warmup_augment: Literal["none", "policy"] = setting("policy", is_option=False)
    optimizer: Literal["adam", "rmsprop"] = setting("adam", is_option=False)
    lr: float = 0.03
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
        for name in ("warmup", "lr", "steps", "init_decay"):
            at_least(f"outer.{name}", getattr(self, name), 0)
        if not self.init_decay < math.inf:
            raise UserError(f"`outer.init_decay` must be finite, got {self.init_decay}")
        if self.init_decay and self.optimizer != "adam":
            raise UserError(f"`outer.init_decay` goes with `outer.optimizer=adam`, not {self.optimizer}")
        if self.solver == "gauss-newton":
            at_least("outer.steps", self.steps, 1)
        fraction("outer.tolerance", self.tolerance)
        fraction("outer.average", self.average)
        for name in ("scale", "damping", "clip"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise UserError(f"`outer.{name}` must be above 0, got {value}")


def warmup_epochs(warmup: float | None, epochs: float) -> float:
    """Return the number of epochs before the first outer step: a fifth of all, unless `outer.warmup` says another."""
    return epochs / 5 if warmup is None else warmup
