"""Hypergradients: the gradient of an outer loss through the solution of an inner problem, for any kind of data."""

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
from madao.hypergrad.estimators.estimator import Estimator
from madao.hypergrad.estimators.influence import Influence
from madao.hypergrad.estimators.relaxed import Relaxed
from madao.hypergrad.hypergradient import Hypergradient, hypergradient
from madao.hypergrad.problem import Problem, SplitLoss, Term
from madao.hypergrad.result import Solution, Stats, Status
from madao.hypergrad.snr import RunningSignal, agreement, expected_agreement, signal_to_noise, t_values
from madao.hypergrad.solvers import (
    ConjugateGradient,
    Deflated,
    GaussNewton,
    Identity,
    Momentum,
    Neumann,
    Nystrom,
    Solver,
    System,
    Unrolled,
)

__all__ = [
    "BatchMean",
    "ClassMean",
    "ConjugateGradient",
    "Deflated",
    "DoubleBackward",
    "Estimator",
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
    "Solution",
    "Solver",
    "SplitLoss",
    "Stats",
    "Status",
    "System",
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
