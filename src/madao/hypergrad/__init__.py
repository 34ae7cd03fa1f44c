"""Hypergradients: the gradient of an outer loss through the solution of an inner problem. Knows nothing of images."""

from madao.distributed.group import Place, Ranks
from madao.hypergrad.cg import ConjugateGradient
from madao.hypergrad.deflated import Deflated
from madao.hypergrad.estimators import Influence, Relaxed
from madao.hypergrad.gauss_newton import GaussNewton
from madao.hypergrad.hvp import DoubleBackward, FiniteDifference, ForwardOverReverse
from madao.hypergrad.hypergradient import Hypergradient, hypergradient
from madao.hypergrad.identity import Identity
from madao.hypergrad.influence import BatchMean, ClassMean, LeaveOneOut, NoBaseline, SameExample, SameLoss, Unaugmented
from madao.hypergrad.neumann import Neumann
from madao.hypergrad.nystrom import Nystrom
from madao.hypergrad.problem import Problem, SplitLoss, Term
from madao.hypergrad.pure import PureModel
from madao.hypergrad.signal import RunningSignal, agreement, expected_agreement, signal_to_noise, t_values
from madao.hypergrad.stats import Stats, Status
from madao.hypergrad.traced import Traced
from madao.hypergrad.unrolled import Momentum, Unrolled

__all__ = [
    "BatchMean",
    "ClassMean",
    "ConjugateGradient",
    "Deflated",
    "DoubleBackward",
    "FiniteDifference",
    "ForwardOverReverse",
    "GaussNewton",
    "Hypergradient",
    "Identity",
    "Influence",
    "LeaveOneOut",
    "Momentum",
    "Neumann",
    "NoBaseline",
    "Nystrom",
    "Place",
    "Problem",
    "PureModel",
    "Ranks",
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
