"""Training from Python: `madao.fit`."""

from madao.fitting.fit import fit
from madao.fitting.result import FitResult

__all__ = ["FitResult", "fit"]
