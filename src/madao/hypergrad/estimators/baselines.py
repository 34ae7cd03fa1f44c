"""Baselines of the score function, computed from the influence of each example.

The influence of example b is a_b = ⟨q, ∇θ ℓ_b⟩: how much a gradient step on this example lowers the outer loss. One
forward-mode pass computes the influence of every example in a batch. For draws z_b ~ P_φ,

    ∂g/∂φ = −E[ mean_b ( (a_b − baseline_b) ∇φ log P_φ(z_b) + ∂a_b/∂inputs · ∂inputs/∂φ ) ]

The first term is the score function, for the discrete part of a draw. The second is pathwise, for the continuous part.
A baseline that does not depend on z_b lowers the variance and does not change the mean.
"""

import dataclasses
from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor


@dataclasses.dataclass(frozen=True, eq=False)
class Batch:
    """The quantities that a baseline may use, `[B]` each."""

    influence: Tensor  # a_b
    classes: Tensor | None  # if the problem has classes
    plain_influence: Callable[[], Tensor] | None  # that before augmentation, by a forward-mode pass
    draws: int = 1  # number of consecutive rows that are draws of the same example
    losses: Tensor | None = None  # ℓ_b, for `SameLoss` alone


class Baseline(Protocol):
    """A function whose result is subtracted from each example's influence before it multiplies the score."""

    def __call__(self, batch: Batch) -> Tensor:
        """Return the baseline of each example, `[B]`."""


@dataclasses.dataclass(frozen=True)
class NoBaseline:
    """The baseline 0: unbiased, with the full variance."""

    def __call__(self, batch: Batch) -> Tensor:
        """Return zeros."""
        return torch.zeros_like(batch.influence)


@dataclasses.dataclass(frozen=True)
class BatchMean:
    """The mean over the batch. It includes the example, which multiplies the expectation by 1 − 1/B."""

    def __call__(self, batch: Batch) -> Tensor:
        """Return the mean B times."""
        return batch.influence.mean().expand_as(batch.influence)


@dataclasses.dataclass(frozen=True)
class LeaveOneOut:
    """The mean over the other examples of the batch. Unbiased."""

    def __call__(self, batch: Batch) -> Tensor:
        """Return the means; zero for a batch of one example."""
        count = len(batch.influence)
        return (batch.influence.sum() - batch.influence) / max(count - 1, 1)


@dataclasses.dataclass(frozen=True)
class ClassMean:
    """The mean over the other examples of the same class, or over all others if there are none. Unbiased."""

    def __call__(self, batch: Batch) -> Tensor:
        """Return the means. Raise without `Problem.classes`."""
        if batch.classes is None:
            raise ValueError("the baseline ClassMean needs the classes of the examples; give Problem(classes=labels)")
        influence = batch.influence
        same = (batch.classes[:, None] == batch.classes).to(influence.dtype)
        others = same.sum(1) - 1
        within = (same @ influence - influence) / others.clamp(min=1)
        return torch.where(others > 0, within, LeaveOneOut()(batch))


@dataclasses.dataclass(frozen=True)
class SameExample:
    """The mean over the other draws of the same example. Unbiased; needs at least two draws of each example."""

    def __call__(self, batch: Batch) -> Tensor:
        """Return the means. Raise if `Problem.draws` is below 2."""
        if batch.draws < 2 or len(batch.influence) % batch.draws:
            raise ValueError(
                f"the baseline SameExample needs at least two draws of every example, got {batch.draws} for "
                f"{len(batch.influence)} rows; set `draws` of Problem or ComputeOptions"
            )
        groups = batch.influence.reshape(-1, batch.draws)
        others = (groups.sum(1, keepdim=True) - groups) / (batch.draws - 1)
        return others.reshape(-1)


@dataclasses.dataclass(frozen=True)
class Unaugmented:
    """The influence of the same example before augmentation. Unbiased; takes one more forward-mode pass."""

    def __call__(self, batch: Batch) -> Tensor:
        """Return the influences. Raise without `Problem.plain`."""
        if batch.plain_influence is None:
            raise ValueError("the baseline Unaugmented needs the examples before augmentation; give Problem(plain=…)")
        return batch.plain_influence()


@dataclasses.dataclass(frozen=True)
class SameLoss:
    """The influence expected of an example with the same loss: ā + β (ℓ_b − ℓ̄), with β = cov(a, ℓ) / var ℓ.

    This baseline is biased on purpose. Hard examples have long gradients, so a step on them lowers the outer loss more.
    The regression line captures this advantage of hard examples, and the baseline removes it: an example keeps only
    its influence beyond its hardness. The gradient is that of E[a − β ℓ], so the pathwise term, from which magnitudes
    learn, loses β ∂ℓ_b/∂inputs too. In other words, it is the influence at a constant training loss.
    """

    def __call__(self, batch: Batch) -> Tensor:
        """Return the points of the line."""
        assert batch.losses is not None
        return batch.influence.mean() + self.slope(batch) * (batch.losses - batch.losses.mean())

    def slope(self, batch: Batch) -> Tensor:
        """Return β; 0 if losses differ by no more than rounding."""
        assert batch.losses is not None
        harder = batch.losses - batch.losses.mean()
        better = batch.influence - batch.influence.mean()
        spread = harder.square().sum()
        ulp = torch.finfo(harder.dtype).eps * batch.losses.abs().max()
        alike = spread <= 16 * len(harder) * ulp.square()
        return torch.where(alike, 0.0, (better * harder).sum() / torch.where(alike, 1.0, spread))
