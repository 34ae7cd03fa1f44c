"""From q to ∂g/∂φ: the mixed second derivative −∂/∂φ ⟨q, ∇θ f⟩, in two ways."""

import dataclasses
from collections.abc import Sequence
from typing import ClassVar, Protocol

import torch
from torch import Tensor

from madao.distributed.group import ProcessGroup
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
from madao.hypergrad.flat_problem import FlatTerm
from madao.hypergrad.problem import detached
from madao.hypergrad.pytree import OptionalVector, Vector


@dataclasses.dataclass(frozen=True, eq=False)
class Directional:
    """How the inner loss changes along a direction q of the parameters.

    Attributes:
        slopes: ⟨q, ∇θ ℓ_b⟩ of every example.
        weights: Of every example in f.
        gradient: Of ⟨q, ∇θ f⟩ in the inputs.
        losses: ℓ_b, a tensor for each term that was only scored, of the same pass; None for the others.
    """

    slopes: Tensor
    weights: Tensor
    gradient: Vector
    losses: Sequence[Tensor | None]


@dataclasses.dataclass(frozen=True, eq=False)
class FlatProblem:
    """A problem made flat, as the estimators take it.

    Attributes:
        params: θ.
        inputs: What f sees of φ, with its graph to φ.
        terms: Of f.
        hyper: φ.
        log_prob: log P of each example's draw, differentiable in φ.
        classes: The class of each example.
        draws: How many draws of one example follow each other.
        plain: The inputs before any draw.
        ranks: The processes that have a part of the examples each.
    """

    params: Vector
    inputs: Vector
    terms: Sequence[FlatTerm]
    hyper: Vector
    log_prob: Tensor | None = None
    classes: Tensor | None = None
    draws: int = 1
    plain: Vector | None = None
    ranks: ProcessGroup = dataclasses.field(default_factory=ProcessGroup)

    def directional(self, q: Vector, second_order: SecondOrder) -> Directional:
        """⟨q, ∇θ ℓ_b⟩ of every example, and the gradient of ⟨q, ∇θ f⟩ in the inputs."""
        slopes, weights, losses, gradient = [], [], [], pytree.zeros_like(self.inputs)
        fixed = detached(self.inputs)
        for term in self.terms:
            given, back = term.with_vjp(self.inputs) if term.pathwise else (term.given(fixed), None)
            if back is not None and any(tensor.requires_grad for tensor in given):
                slope, part = second_order.directional(term.loss, self.params, q, given)
                gradient, value = _added(gradient, back(part), term.pathwise), None
            else:
                value, slope = second_order.slopes(term.loss, self.params, q, given)
            losses.append(value)
            slopes.append(slope.reshape(-1))
            weights.append(torch.full_like(slopes[-1], term.weight / slope.numel()))
        return Directional(torch.cat(slopes), torch.cat(weights), gradient, losses)

    def losses(self, known: Sequence[Tensor | None], second_order: SecondOrder) -> tuple[Tensor, Vector]:
        """ℓ_b of every example, and the gradient of f in the inputs, where that of ⟨q, ∇θ f⟩ was taken.

        Args:
            known: Of the terms that were only scored.
            second_order: How the others are computed.
        """
        losses, gradient = [], pytree.zeros_like(self.inputs)
        for term, value in zip(self.terms, known, strict=True):
            if value is None:
                given, back = term.with_vjp(self.inputs)
                value, part = second_order.losses(term.loss, self.params, given)
                gradient = _added(gradient, back(part), term.pathwise)
            losses.append(value.reshape(-1))
        return torch.cat(losses), gradient

    def pull_back(self, cotangents: Vector) -> Vector:
        """From the inputs to φ, by the graph between them."""
        if self.inputs is self.hyper:
            return cotangents
        attached = [i for i, tensor in enumerate(self.inputs) if tensor.requires_grad]
        if not attached:
            return pytree.zeros_like(self.hyper)
        return torch.autograd.grad(
            [self.inputs[i] for i in attached],
            self.hyper,
            [cotangents[i] for i in attached],
            retain_graph=True,
            materialize_grads=True,
        )


def _added(gradient: Vector, part: OptionalVector, weight: float) -> Vector:
    return tuple(g if p is None else g.add(p, alpha=weight) for g, p in zip(gradient, part, strict=True))


class Estimator(Protocol):
    """A way from q to ∂g/∂φ: this process's part of it, where there are several."""

    def gradient(self, setting: FlatProblem, q: Vector, second_order: SecondOrder) -> Vector:
        """−∂/∂φ ⟨q, ∇θ f⟩."""


@dataclasses.dataclass(frozen=True)
class Relaxed:
    """Through the inputs' own derivative in φ: exact where they have one, the paper's relaxation where they have not.

    The gradient in the inputs of a forward-mode directional derivative, then the inputs' own backward pass. No graph
    over θ is kept.
    """

    may_use_plain: ClassVar[bool] = False

    def gradient(self, setting: FlatProblem, q: Vector, second_order: SecondOrder) -> Vector:
        """One directional derivative and its gradient."""
        found = setting.directional(q, second_order)
        return pytree.scaled(self.pulled_back(setting, found.gradient), -1.0)

    def pulled_back(self, setting: FlatProblem, cotangents: Vector) -> Vector:
        """From the inputs to φ; there has to be a way."""
        if setting.inputs is not setting.hyper and not any(tensor.requires_grad for tensor in setting.inputs):
            raise ValueError(
                "the inputs carry no gradient to hyper; compute them with gradients enabled, for a policy from a draw "
                "made with relaxed=True"
            )
        return setting.pull_back(cotangents)


@dataclasses.dataclass(frozen=True)
class Influence:
    """Score function for what was drawn, pathwise for what was not. The inner loss has to give one value per example.

    Unbiased also where the draw is discrete, which no relaxation is.

    Attributes:
        baseline: What is taken from each example's influence: `LeaveOneOut()`, `ClassMean()`, `SameExample()`,
            `Unaugmented()`, `BatchMean()`, `NoBaseline()`, or your own function of a `Batch`; or `SameLoss()`, which
            answers another question.
    """

    baseline: Baseline = dataclasses.field(default_factory=LeaveOneOut)

    @property
    def may_use_plain(self) -> bool:
        """Whether `Problem.plain` is of use; a baseline of your own may look at it, one that is made of ours too."""
        return type(self.baseline) not in (BatchMean, ClassMean, LeaveOneOut, NoBaseline, SameExample, SameLoss)

    def gradient(self, setting: FlatProblem, q: Vector, second_order: SecondOrder) -> Vector:
        """One directional derivative, its gradient, and the score."""
        if setting.log_prob is None:
            raise ValueError(
                "Influence needs the log-probability of each draw; give Problem(log_prob=policy.log_prob(draw))"
            )
        if not setting.log_prob.requires_grad:
            raise ValueError("log_prob carries no gradient to hyper; compute it with gradients enabled")
        found = setting.directional(q, second_order)
        influence, cotangents = found.slopes, found.gradient
        if influence.shape != setting.log_prob.shape:
            raise ValueError(
                "Influence needs the loss of each example: the inner loss gave shape "
                f"{list(influence.shape)}, log_prob has {list(setting.log_prob.shape)}; use reduction='none'"
            )

        def plain_influence() -> Tensor:
            assert setting.plain is not None
            params, inputs = setting.params, setting.plain
            slopes = [second_order.slopes(t.loss, params, q, t.given(inputs))[1].reshape(-1) for t in setting.terms]
            return gathered(torch.cat(slopes))

        # A baseline looks at the whole batch, wherever its examples are.
        gathered, (place,) = setting.ranks.all_gather, setting.ranks.places([len(influence)], influence.device)
        classes = None if setting.classes is None else gathered(setting.classes)
        plain = None if setting.plain is None else plain_influence
        batch = Batch(gathered(influence), classes, plain, setting.draws)
        if isinstance(self.baseline, SameLoss):
            losses, gradient = setting.losses(found.losses, second_order)
            batch = dataclasses.replace(batch, losses=gathered(losses))
            cotangents = pytree.add(cotangents, pytree.scaled(gradient, self.baseline.slope(batch)), -1.0)
        baseline = self.baseline(batch)
        own = baseline if setting.ranks.world == 1 else baseline[place.start : place.stop]
        advantage = (influence - own) * found.weights
        score = torch.autograd.grad(
            setting.log_prob,
            setting.hyper,
            advantage.to(setting.log_prob.dtype),
            retain_graph=True,
            materialize_grads=True,
        )
        pathwise = setting.pull_back(cotangents)
        return pytree.scaled(pytree.add(score, pathwise), -1.0)
