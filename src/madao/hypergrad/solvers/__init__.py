"""Solvers: approximations of q = H⁻¹ v, one per file."""

from madao.hypergrad.solvers.conjugate_gradient import ConjugateGradient
from madao.hypergrad.solvers.deflated import Deflated
from madao.hypergrad.solvers.gauss_newton import GaussNewton
from madao.hypergrad.solvers.identity import Identity
from madao.hypergrad.solvers.neumann import Neumann
from madao.hypergrad.solvers.nystrom import Nystrom
from madao.hypergrad.solvers.solver import Solver, System
from madao.hypergrad.solvers.unrolled import Momentum, Unrolled

__all__ = [
    "ConjugateGradient",
    "Deflated",
    "GaussNewton",
    "Identity",
    "Momentum",
    "Neumann",
    "Nystrom",
    "Solver",
    "System",
    "Unrolled",
]
