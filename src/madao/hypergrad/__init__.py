"""Hypergradients: the gradient of an outer loss through the solution of an inner problem. Knows nothing of images."""

from madao.hypergrad.autodiff.functional_model import FunctionalModel
from madao.hypergrad.autodiff.products import DoubleBackward, FiniteDifference, ForwardOverReverse
from madao.hypergrad.autodiff.traced import Traced
from madao.hypergrad.estimators.baselines import (
    BatchMean,
    ClassMean,
    LeaveOneOut,
    NoBaseline,
    SameExample,
    SameLoss,
    Unaugmented,
)
from madao.hypergrad.estimators.estimators import Influence, Relaxed
from madao.hypergrad.hypergradient import Hypergradient, hypergradient
from madao.hypergrad.problem import Problem, SplitLoss, Term
from madao.hypergrad.result import Stats, Status
from madao.hypergrad.snr import RunningSignal, agreement, expected_agreement, signal_to_noise, t_values
from madao.hypergrad.solvers.conjugate_gradient import ConjugateGradient
from madao.hypergrad.solvers.deflated import Deflated
from madao.hypergrad.solvers.gauss_newton import GaussNewton
from madao.hypergrad.solvers.identity import Identity
from madao.hypergrad.solvers.neumann import Neumann
from madao.hypergrad.solvers.nystrom import Nystrom
from madao.hypergrad.solvers.unrolled import Momentum, Unrolled

__all__ = [
    "BatchMean",
    "ClassMean",
    "ConjugateGradient",
    "Deflated",
    "DoubleBackward",
    "FiniteDifference",
    "ForwardOverReverse",
    "FunctionalModel",
    "GaussNewton",
    "Hypergradient",
    "Identity",
    "Influence",
    "LeaveOneOut",
    "Momentum",
    "Neumann",
    "NoBaseline",
    "Nystrom",
    "Problem",
    "Relaxed",
    "RunningSignal",
    "SameExample",
    "SameLoss",
    "SplitLoss",
    "Stats",
    "Status",
    "Term",
    "Traced",
    "Unaugmented",
    "Unrolled",
    "agreement",
    "expected_agreement",
    "hypergradient",
    "signal_to_noise",
    "t_values",
]
