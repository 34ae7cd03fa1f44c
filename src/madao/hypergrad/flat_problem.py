"""A problem's losses as functions of flat vectors."""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from madao.hypergrad.problem import Loss, Term, as_terms, check_loss, detached
from madao.hypergrad.pytree import OptionalVector, Vector


@dataclasses.dataclass(frozen=True)
class _FlatLoss:
    """A loss of flat vectors. Two of the same loss are equal, so that what was made of one can be kept."""

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
                    " let outputs() return what the loss is computed from, or use Deflated"
                )
        return found

    def of_outputs(self, outputs: Tensor, inputs: Vector) -> Tensor:
        return check_loss(self._split().of_outputs(outputs, self.form_inputs(inputs)), self.name)

    def _split(self) -> Any:
        if not (hasattr(self.loss, "outputs") and hasattr(self.loss, "of_outputs")):
            raise ValueError(
                f"the {self.name} loss has to tell outputs from their loss for GaussNewton: an object with the methods "
                f"outputs(params, inputs) and of_outputs(outputs, inputs); got {self.loss!r}"
            )
        return self.loss


@dataclasses.dataclass(frozen=True, eq=False)
class FlatTerm:
    """A `Term`, flat.

    Attributes:
        loss: Of flat params and of what it is given of the inputs.
        weight: In the sum.
        pathwise: Its weight in the derivative by way of the inputs; 0 where that is not taken.
        of: What it is given of the inputs; None for all.
    """

    loss: _FlatLoss
    weight: float
    pathwise: float
    of: Callable[[Vector], Vector] | None = None

    def given(self, inputs: Vector) -> Vector:
        """What the loss takes of the inputs."""
        return inputs if self.of is None else self.of(inputs)

    def with_vjp(self, inputs: Vector) -> tuple[Vector, Callable[[OptionalVector], OptionalVector]]:
        """What the loss takes of the inputs, and the way from a gradient in that to one in the inputs.

        What of it depends on the inputs has `requires_grad`. Gradients are None where there are none.
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
    """The terms of a loss by this name, with the ways from flat vectors to what it takes."""
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
