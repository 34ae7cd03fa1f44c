"""The estimator that scores draws by their influence."""

import dataclasses
from typing import ClassVar

import torch
from torch import Tensor

from madao.hypergrad import pytree
from madao.hypergrad.autodiff.products import SecondOrder
from madao.hypergrad.estimators.baselines import (
    Baseline,
    Batch,
    BatchMean,
    ClassMean,
    LeaveOneOut,
    NoBaseline,
    SameExample,
    SameLoss,
)
from madao.hypergrad.estimators.estimator import Estimator
from madao.hypergrad.flat_problem import FlatProblem
from madao.hypergrad.pytree import Vector


@dataclasses.dataclass(frozen=True)
class Influence(Estimator):
    """An estimator by the score function for discrete draws and the pathwise derivative for continuous ones.

    It is unbiased for discrete draws too, as no relaxation is. The inner loss must return one value per example.

    Attributes:
        baseline: Subtracted from each example's influence: `LeaveOneOut()`, `ClassMean()`, `SameExample()`,
            `Unaugmented()`, `BatchMean()`, `NoBaseline()`, or your own function of a `Batch`. `SameLoss()` is biased
            on purpose.
    """

    scores_draws: ClassVar[bool] = True

    baseline: Baseline = dataclasses.field(default_factory=LeaveOneOut)

    @property
    def may_use_plain(self) -> bool:
        """Whether `Problem.plain` may be used: by `Unaugmented`, and by any baseline that is not defined here."""
        return type(self.baseline) not in (BatchMean, ClassMean, LeaveOneOut, NoBaseline, SameExample, SameLoss)

    def gradient(self, problem: FlatProblem, q: Vector, second_order: SecondOrder) -> Vector:
        """Compute a directional derivative, its gradient in the inputs, and the score."""
        if problem.log_prob is None:
            raise ValueError(
                "Influence needs the log-probability of each draw; give Problem(log_prob=policy.log_prob(draw))"
            )
        if not problem.log_prob.requires_grad:
            raise ValueError("log_prob carries no gradient to hyper; compute it with gradients enabled")
        found = problem.directional(q, second_order)
        influence, cotangents = found.slopes, found.gradient
        if influence.shape != problem.log_prob.shape:
            raise ValueError(
                "Influence needs the loss of each example: the inner loss gave shape "
                f"{list(influence.shape)}, log_prob has {list(problem.log_prob.shape)}; use reduction='none'"
            )

        def plain_influence() -> Tensor:
            assert problem.plain is not None
            params, inputs = problem.params, problem.plain
            slopes = [second_order.slopes(t.loss, params, q, t.given(inputs))[1].reshape(-1) for t in problem.inner]
            return gathered(torch.cat(slopes))

        # A baseline is a function of the whole batch, the examples of other processes included.
        gathered, (place,) = problem.ranks.all_gather, problem.ranks.places([len(influence)], influence.device)
        classes = None if problem.classes is None else gathered(problem.classes)
        plain = None if problem.plain is None else plain_influence
        batch = Batch(gathered(influence), classes, plain, problem.draws)
        if isinstance(self.baseline, SameLoss):
            losses, gradient = problem.losses(found.losses, second_order)
            batch = dataclasses.replace(batch, losses=gathered(losses))
            cotangents = pytree.add(cotangents, pytree.scaled(gradient, self.baseline.slope(batch)), -1.0)
        baseline = self.baseline(batch)
        own = baseline if problem.ranks.world == 1 else baseline[place.start : place.stop]
        advantage = (influence - own) * found.weights
        weights = advantage.to(problem.log_prob.dtype)
        settings = {"retain_graph": True, "materialize_grads": True}
        score = torch.autograd.grad(problem.log_prob, problem.hyper, weights, **settings)
        return pytree.scaled(pytree.add(score, problem.pull_back(cotangents)), -1.0)
