"""A problem whose losses are functions of flat vectors."""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from madao.distributed.group import ProcessGroup
from madao.hypergrad import pytree
from madao.hypergrad.autodiff.products import SecondOrder
from madao.hypergrad.autodiff.torch_compat import tree_leaves
from madao.hypergrad.problem import Loss, Problem, Term, as_terms, check_loss, detached
from madao.hypergrad.pytree import Operator, OptionalVector, Vector


@dataclasses.dataclass(frozen=True)
class _FlatLoss:
    """A function of flat vectors. Two of the same loss are equal, so that `Traced` finds its graph again."""

    loss: Callable[..., Tensor]
    name: str = dataclasses.field(compare=False)
    form_params: Callable[[Vector], Any] = dataclasses.field(compare=False)
    form_inputs: Callable[[Vector], Any] = dataclasses.field(compare=False)

    def __call__(self, params: Vector, inputs: Vector) -> Tensor:
        return check_loss(self.loss(self.form_params(params), self.form_inputs(inputs)), self.name)

    def outputs(self, params: Vector, inputs: Vector) -> Tensor:
        found: Tensor = self._split().outputs(self.form_params(params), self.form_inputs(inputs))
        for leaf in tree_leaves(found):
            if not isinstance(leaf, Tensor) or not leaf.is_floating_point():
                kind = leaf.dtype if isinstance(leaf, Tensor) else type(leaf).__name__
                raise ValueError(
                    f"GaussNewton needs outputs that are floating-point tensors, or lists or dicts of them, got {kind};"
                    " return the tensors that the loss is computed from, or use Deflated"
                )
        return found

    def of_outputs(self, outputs: Tensor, inputs: Vector) -> Tensor:
        return check_loss(self._split().of_outputs(outputs, self.form_inputs(inputs)), self.name)

    def _split(self) -> Any:
        if not (hasattr(self.loss, "outputs") and hasattr(self.loss, "of_outputs")):
            raise ValueError(
                f"the {self.name} loss must have the methods outputs(params, inputs) and of_outputs(outputs, inputs) "
                f"for GaussNewton, got {self.loss!r}; define them, or use Deflated"
            )
        return self.loss


@dataclasses.dataclass(frozen=True, eq=False)
class FlatTerm:
    """A `Term` of flat vectors.

    Attributes:
        loss: The loss, a function of flat params and of `given(inputs)`.
        weight: The weight in the sum.
        pathwise: The weight in the derivative through the inputs; 0 for no such derivative.
        of: A function from the inputs to the tensors that the loss receives; None for all inputs.
    """

    loss: _FlatLoss
    weight: float
    pathwise: float
    of: Callable[[Vector], Vector] | None = None

    def given(self, inputs: Vector) -> Vector:
        """Return the tensors that the loss receives."""
        return inputs if self.of is None else self.of(inputs)

    def with_vjp(self, inputs: Vector) -> tuple[Vector, Callable[[OptionalVector], OptionalVector]]:
        """Return the tensors that the loss receives, and a function from gradients in them to gradients in the inputs.

        The tensors that depend on the inputs have `requires_grad`. A gradient that does not exist is None.
        """
        leaves = detached(inputs, requires_grad=True)
        if self.of is None:
            return leaves, lambda gradient: gradient
        with torch.enable_grad():
            given = self.of(leaves)

        def back(gradient: OptionalVector) -> OptionalVector:
            pairs = [(tensor, part) for tensor, part in zip(given, gradient, strict=True) if part is not None]
            if not pairs:
                return (None,) * len(leaves)
            tensors, cotangents = zip(*pairs, strict=True)
            return torch.autograd.grad(tensors, leaves, cotangents, allow_unused=True)

        return given, back


def flat_terms(
    loss: Loss | Sequence[Term],
    name: str,
    form_params: Callable[[Vector], Any],
    form_inputs: Callable[[Vector], Any],
) -> list[FlatTerm]:
    """Return the flat terms of a loss.

    Args:
        loss: The loss, or its terms.
        name: The name of the loss in errors.
        form_params: Restores the form of `Problem.params`.
        form_inputs: Restores the form of `Problem.inputs`.
    """
    found = []
    for term in as_terms(loss):
        pathwise = term.weight if term.pathwise is None else term.pathwise
        if term.of is None:
            found.append(FlatTerm(_FlatLoss(term.loss, name, form_params, form_inputs), term.weight, pathwise))
        else:
            chosen = functools.partial(_taken, term.of, form_inputs, name)
            found.append(FlatTerm(_FlatLoss(term.loss, name, form_params, tuple), term.weight, pathwise, chosen))
    return found


def _taken(of: Callable[[Any], Any], form_inputs: Callable[[Vector], Any], name: str, inputs: Vector) -> Vector:
    taken = of(form_inputs(inputs))
    if not isinstance(taken, tuple) or not all(isinstance(tensor, Tensor) for tensor in taken):
        raise TypeError(
            f"Term.of must return a tuple of tensors, got {type(taken).__name__} for a term of the {name} loss; "
            "put a single tensor into a tuple, (tensor,)"
        )
    return taken


@dataclasses.dataclass(frozen=True, eq=False)
class Directional:
    """The derivative of the inner loss along a direction q in θ.

    Attributes:
        slopes: ⟨q, ∇θ ℓ_b⟩ of every example.
        weights: The weight of every example in f.
        gradient: The gradient of ⟨q, ∇θ f⟩ in the inputs.
        losses: ℓ_b from the same pass, a tensor for each term that is only scored; None for the other terms.
    """

    slopes: Tensor
    weights: Tensor
    gradient: Vector
    losses: Sequence[Tensor | None]


@dataclasses.dataclass(frozen=True, eq=False)
class FlatProblem:
    """A `Problem` whose parameters, hyperparameters and inputs are flat tuples of tensors.

    Attributes:
        params: θ.
        hyper: φ.
        inputs: The tensors through which the losses depend on φ, with their graph; `hyper` if the losses receive φ.
        inner: The terms of f.
        outer: The terms of g.
        curvature: The terms of the loss whose curvature is used.
        weight_decay: λ of λ/2 ‖θ‖² in f.
        log_prob: log P of each example's draw, differentiable in φ.
        classes: The class of each example.
        draws: How many consecutive rows are draws of the same example.
        plain: The inputs before augmentation.
        ranks: The processes, each of which has some of the examples.
    """

    params: Vector
    hyper: Vector
    inputs: Vector
    inner: Sequence[FlatTerm]
    outer: Sequence[FlatTerm]
    curvature: Sequence[FlatTerm]
    weight_decay: float
    log_prob: Tensor | None
    classes: Tensor | None
    draws: int
    plain: Vector | None
    ranks: ProcessGroup

    @classmethod
    def of(cls, problem: Problem) -> "FlatProblem":
        """Flatten a problem. Raise if it cannot be differentiated."""
        params, form_params = pytree.flatten(problem.params, "params")
        hyper, form_hyper = pytree.flatten(problem.hyper, "hyper")
        same = problem.inputs is None
        inputs, form_inputs = (hyper, form_hyper) if same else pytree.flatten(problem.inputs, "inputs")
        if not same and not all(tensor.requires_grad for tensor in hyper):
            raise ValueError("every tensor of hyper must require a gradient; leave out those that are frozen")

        def flat(loss: Loss | Sequence[Term], name: str) -> list[FlatTerm]:
            return flat_terms(loss, name, form_params, form_inputs)

        inner = flat(problem.inner, "inner")
        return cls(
            params=params,
            hyper=hyper,
            inputs=inputs,
            inner=inner,
            outer=flat(problem.outer, "outer"),
            curvature=inner if problem.curvature is None else flat(problem.curvature, "curvature"),
            weight_decay=problem.weight_decay,
            log_prob=problem.log_prob,
            classes=problem.classes,
            draws=problem.draws,
            plain=None if problem.plain is None else pytree.flatten(problem.plain, "plain")[0],
            ranks=problem.ranks,
        )

    def gradient(
        self, terms: Sequence[FlatTerm], second_order: SecondOrder, direct: bool = False
    ) -> tuple[Tensor, Vector, Vector | None]:
        """Return a loss, its gradient in θ, and its gradient in the inputs.

        The loss and its gradient in θ are summed over all processes; the gradient in the inputs is this process's.

        Args:
            terms: The terms of the loss.
            second_order: How gradients are computed.
            direct: Whether to compute the gradient in the inputs. It is None otherwise, or if it does not exist.
        """
        params, inputs = self.params, self.inputs
        value = torch.zeros((), device=params[0].device)
        gradient: Vector | None = None
        by_inputs: Vector | None = None
        for term in terms:
            given, back = term.with_vjp(inputs) if direct else (term.given(detached(inputs)), None)
            part, found = second_order.gradient(term.loss, params, given)
            if all(part_gradient is None for part_gradient in found[: len(params)]):
                raise ValueError(
                    f"the {term.loss.name} loss does not depend on the params it is given; compute it from them, for a "
                    "module with FunctionalModel(model)(params, images)"
                )
            gradient = _sum(gradient, _filled(found[: len(params)], params), term.weight)
            if back is not None:
                through = back(found[len(params) :])
                if any(part_gradient is not None for part_gradient in through):
                    by_inputs = _sum(by_inputs, _filled(through, inputs), term.weight)
            value = value + term.weight * part
        assert gradient is not None
        value, *summed = self.ranks.all_reduce_sum((value, *gradient))
        return value, tuple(summed), by_inputs

    def curvature_gradient(self, second_order: SecondOrder) -> Vector:
        """Return the gradient in θ of the curvature loss, weight decay included."""
        gradient = self.gradient(self.curvature, second_order)[1]
        return pytree.add(gradient, self.params, self.weight_decay) if self.weight_decay else gradient

    def curvature_operator(self, products: Callable[[Any, Vector, Vector], Operator]) -> Operator:
        """Return v ↦ H v for the curvature loss, summed over terms and processes, weight decay included.

        Args:
            products: `products(loss, params, inputs)` returns the operator of one loss. It is called at the first use.
        """

        @functools.cache
        def operators() -> list[tuple[Operator, float]]:
            return [
                (products(term.loss, self.params, term.given(detached(self.inputs))), term.weight)
                for term in self.curvature
            ]

        def product(direction: Vector) -> Vector:
            result: Vector | None = None
            for operator, weight in operators():
                result = _sum(result, operator(direction), weight)
            assert result is not None
            result = self.ranks.all_reduce_sum(result)
            return pytree.add(result, direction, self.weight_decay) if self.weight_decay else result

        return product

    def directional(self, q: Vector, second_order: SecondOrder) -> Directional:
        """Return ⟨q, ∇θ ℓ_b⟩ of every example, and the gradient of ⟨q, ∇θ f⟩ in the inputs."""
        slopes, weights, losses, gradient = [], [], [], pytree.zeros_like(self.inputs)
        fixed = detached(self.inputs)
        for term in self.inner:
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
        """Return ℓ_b of every example, and the gradient in the inputs of the terms with a pathwise derivative.

        Args:
            known: `Directional.losses`.
            second_order: How the other losses are computed.
        """
        losses, gradient = [], pytree.zeros_like(self.inputs)
        for term, value in zip(self.inner, known, strict=True):
            if value is None:
                given, back = term.with_vjp(self.inputs)
                value, part = second_order.losses(term.loss, self.params, given)
                gradient = _added(gradient, back(part), term.pathwise)
            losses.append(value.reshape(-1))
        return torch.cat(losses), gradient

    def pull_back(self, cotangents: Vector) -> Vector:
        """Return the gradient in φ from a gradient in the inputs, by the graph between them."""
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

    def pull_back_attached(self, cotangents: Vector) -> Vector:
        """Return `pull_back` of the cotangents. Raise if the inputs do not depend on φ."""
        if self.inputs is not self.hyper and not any(tensor.requires_grad for tensor in self.inputs):
            raise ValueError(
                "the inputs carry no gradient to hyper; compute them with gradients enabled, for a policy from a draw "
                "made with relaxed=True"
            )
        return self.pull_back(cotangents)


def _filled(gradient: OptionalVector, like: Vector) -> Vector:
    return tuple(torch.zeros_like(p) if g is None else g for g, p in zip(gradient, like, strict=True))


def _sum(so_far: Vector | None, part: Vector, weight: float) -> Vector:
    if so_far is None:
        return part if weight == 1 else pytree.scaled(part, weight)
    return pytree.add(so_far, part, weight)


def _added(gradient: Vector, part: OptionalVector, weight: float) -> Vector:
    return tuple(g if p is None else g.add(p, alpha=weight) for g, p in zip(gradient, part, strict=True))
