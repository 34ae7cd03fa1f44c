"""Estimators, which turn q into ∂g/∂φ, and the baselines of the score function."""

from madao.hypergrad.estimators.baselines import (
    Baseline,
    Batch,
    BatchMean,
    ClassMean,
    LeaveOneOut,
    NoBaseline,
    SameExample,
    SameLoss,
    Unaugmented,
)
from madao.hypergrad.estimators.estimator import Estimator
from madao.hypergrad.estimators.influence import Influence
from madao.hypergrad.estimators.relaxed import Relaxed

__all__ = [
    "Baseline",
    "Batch",
    "BatchMean",
    "ClassMean",
    "Estimator",
    "Influence",
    "LeaveOneOut",
    "NoBaseline",
    "Relaxed",
    "SameExample",
    "SameLoss",
    "Unaugmented",
]
