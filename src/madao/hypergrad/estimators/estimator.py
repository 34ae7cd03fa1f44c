"""The interface of estimators."""

from abc import ABC, abstractmethod
from typing import ClassVar

from madao.hypergrad.autodiff.products import SecondOrder
from madao.hypergrad.flat_problem import FlatProblem
from madao.hypergrad.pytree import Vector


class Estimator(ABC):
    """An estimator of the mixed second derivative −∂/∂φ ⟨q, ∇θ f⟩. Subclasses are frozen dataclasses.

    Attributes:
        scores_draws: Whether it weighs draws by their log-probability. The inputs then carry only the derivative in
            the continuous part of each draw, and this derivative may be restricted to some of the examples.
    """

    scores_draws: ClassVar[bool] = False

    @property
    def may_use_plain(self) -> bool:
        """Whether it may read `Problem.plain`."""
        return True

    @abstractmethod
    def gradient(self, problem: FlatProblem, q: Vector, second_order: SecondOrder) -> Vector:
        """Estimate −∂/∂φ ⟨q, ∇θ f⟩ over the examples of this process, for q as the solver found it."""
