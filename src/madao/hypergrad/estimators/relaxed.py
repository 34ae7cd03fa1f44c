"""The estimator that differentiates the inputs in φ."""

import dataclasses

from madao.hypergrad import pytree
from madao.hypergrad.autodiff.products import SecondOrder
from madao.hypergrad.estimators.estimator import Estimator
from madao.hypergrad.flat_problem import FlatProblem
from madao.hypergrad.pytree import Vector


@dataclasses.dataclass(frozen=True)
class Relaxed(Estimator):
    """An estimator that uses the derivative of the inputs in φ: exact where they have one, else the paper's relaxation.

    A forward-mode directional derivative is differentiated in the inputs, and the inputs' own backward pass does the
    rest. No graph over θ is stored.
    """

    @property
    def may_use_plain(self) -> bool:
        """Return False: unaugmented inputs are not used."""
        return False

    def gradient(self, problem: FlatProblem, q: Vector, second_order: SecondOrder) -> Vector:
        """Differentiate ⟨q, ∇θ f⟩ in the inputs, then in φ."""
        found = problem.directional(q, second_order)
        return pytree.scaled(problem.pull_back_attached(found.gradient), -1.0)
