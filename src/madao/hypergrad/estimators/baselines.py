"""Per-example influence, and the policy gradient made of it.

The influence of example b is a_b = ⟨q, ∇θ ℓ_b⟩: how much one gradient step on that example lowers the outer loss. One
forward-mode pass gives the influence of every example of a batch. For draws z_b ~ P_φ,

    ∂g/∂φ = −E[ mean_b ( (a_b − baseline_b) ∇φ log P_φ(z_b) + ∂a_b/∂inputs · ∂inputs/∂φ ) ]

The first part is the score function, for what is discrete; the second is pathwise, for what is not. A baseline that
does not depend on z_b leaves the mean alone and takes variance away.
"""

import dataclasses
from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor


@dataclasses.dataclass(frozen=True, eq=False)
class Batch:
    """What a baseline may look at.

    Attributes:
        influence: a_b, `[B]`.
        classes: The class of each example, `[B]`, where the problem has them.
        plain_influence: Gives the influence of the same examples not augmented, `[B]`, by a forward-mode pass.
        draws: How many draws of one example follow each other.
        losses: ℓ_b, `[B]`, for a baseline that asks for them.
    """

    influence: Tensor
    classes: Tensor | None
    plain_influence: Callable[[], Tensor] | None
    draws: int = 1
    losses: Tensor | None = None


class Baseline(Protocol):
    """What is taken from each example's influence before it multiplies the score."""

    def __call__(self, batch: Batch) -> Tensor:
        """The baseline of each example, `[B]`."""


@dataclasses.dataclass(frozen=True)
class NoBaseline:
    """Zero. Unbiased, with all of the variance."""

    def __call__(self, batch: Batch) -> Tensor:
        """Zeros."""
        return torch.zeros_like(batch.influence)


@dataclasses.dataclass(frozen=True)
class BatchMean:
    """The mean over the batch. Its own example is in it, so the expectation shrinks by the factor 1 − 1/B."""

    def __call__(self, batch: Batch) -> Tensor:
        """The mean, B times."""
        return batch.influence.mean().expand_as(batch.influence)


@dataclasses.dataclass(frozen=True)
class LeaveOneOut:
    """The mean over the other examples of the batch. Unbiased."""

    def __call__(self, batch: Batch) -> Tensor:
        """Zero for a batch of one, which has no others."""
        count = len(batch.influence)
        return (batch.influence.sum() - batch.influence) / max(count - 1, 1)


@dataclasses.dataclass(frozen=True)
class ClassMean:
    """The mean over the other examples of the same class; over all others for the only one of its class. Unbiased."""

    def __call__(self, batch: Batch) -> Tensor:
        """Needs `Problem.classes`."""
        if batch.classes is None:
            raise ValueError("the baseline ClassMean needs to know the classes; give Problem(classes=labels)")
        influence = batch.influence
        same = (batch.classes[:, None] == batch.classes).to(influence.dtype)
        others = same.sum(1) - 1
        within = (same @ influence - influence) / others.clamp(min=1)
        return torch.where(others > 0, within, LeaveOneOut()(batch))


@dataclasses.dataclass(frozen=True)
class SameExample:
    """The mean over the other draws of the same example. Unbiased; needs two draws of each, or more."""

    def __call__(self, batch: Batch) -> Tensor:
        """Needs `Problem.draws`."""
        if batch.draws < 2 or len(batch.influence) % batch.draws:
            raise ValueError(
                "the baseline SameExample needs two draws of every example or more; give Problem(draws=…), or "
                f"PolicyOptimizer(draws=…), got {batch.draws} for {len(batch.influence)} rows"
            )
        groups = batch.influence.reshape(-1, batch.draws)
        others = (groups.sum(1, keepdim=True) - groups) / (batch.draws - 1)
        return others.reshape(-1)


@dataclasses.dataclass(frozen=True)
class Unaugmented:
    """The influence of the same example as it was before any draw. Unbiased; one more forward-mode pass."""

    def __call__(self, batch: Batch) -> Tensor:
        """Needs `Problem.plain`."""
        if batch.plain_influence is None:
            raise ValueError("the baseline Unaugmented needs the examples as they were; give Problem(plain=…)")
        return batch.plain_influence()


@dataclasses.dataclass(frozen=True)
class SameLoss:
    """What an example of the same loss has, by a line through the batch: ā + β (ℓ_b − ℓ̄), β = cov(a, ℓ) / var ℓ.

    Biased, and meant to be. Hard examples have long gradients, so a step on them lowers the outer loss by more: of that
    line, which says "whatever is hard", nothing is left, and what an example is worth beyond its hardness is. It is
    ∂/∂φ E[a − β ℓ]: what magnitudes are learned from loses β ∂ℓ_b/∂inputs likewise. In other words, the influence at a
    training loss that stays as it is.
    """

    def __call__(self, batch: Batch) -> Tensor:
        """Points of the line."""
        assert batch.losses is not None
        return batch.influence.mean() + self.slope(batch) * (batch.losses - batch.losses.mean())

    def slope(self, batch: Batch) -> Tensor:
        """β, 0 where losses differ by no more than rounding."""
        assert batch.losses is not None
        harder = batch.losses - batch.losses.mean()
        better = batch.influence - batch.influence.mean()
        spread = harder.square().sum()
        ulp = torch.finfo(harder.dtype).eps * batch.losses.abs().max()
        alike = spread <= 16 * len(harder) * ulp.square()
        return torch.where(alike, 0.0, (better * harder).sum() / torch.where(alike, 1.0, spread))
