"""The loss of each example, as a function of the parameters, for the outer step."""

import copy
import dataclasses
import functools
import inspect
import itertools
from collections.abc import Callable

import torch
from torch import Tensor, nn

from madao.hypergrad import Place, PureModel, Term
from madao.hypergrad.pure import Mode, raised
from madao.policy.standard import normalise

Loss = Callable[..., Tensor]


Examples = Callable[[tuple[Tensor, ...], slice], tuple[Tensor, Tensor]]
"""`examples(given, part)`: the model's inputs and the targets of a part of a batch, from a problem's inputs."""


def given_at(place: int, targets: Tensor | None) -> Examples:
    """Those of what is given at a place, with these targets, or where there are none with those behind them."""
    return lambda given, part: (given[place][part], (given[place + 1] if targets is None else targets)[part])


def as_they_are(images: Tensor, targets: Tensor, transform: Callable[[Tensor], Tensor]) -> Examples:
    """These, whatever is given."""
    return lambda _, part: (transform(normalise(images[part])), targets[part])


class ExampleLosses:
    """`losses(params, (inputs, targets))`, `[B]`; equal to another of the same losses and model.

    Args:
        losses: Of outputs and targets.
        model: In its mode.
        dtype: Of the targets, which come as floating point.
    """

    def __init__(self, losses: Loss, model: PureModel, dtype: torch.dtype) -> None:
        self.losses, self.model, self.dtype = losses, model, dtype
        self.identity = (losses, id(model.model), model.mode, model.autocast, dtype)

    def __call__(self, params: dict[str, Tensor], given: tuple[Tensor, Tensor]) -> Tensor:
        """One value an example."""
        return self.of_outputs(self.outputs(params, given), given)

    def outputs(self, params: dict[str, Tensor], given: tuple[Tensor, Tensor]) -> Tensor:
        """The model's, in float32, as mixed-precision training has them for its loss."""
        outputs: Tensor = raised(self.model(params, given[0]))
        return outputs

    def of_outputs(self, outputs: Tensor, given: tuple[Tensor, Tensor]) -> Tensor:
        """The loss of each."""
        return self.losses(outputs, given[1].to(self.dtype))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ExampleLosses) and self.identity == other.identity

    def __hash__(self) -> int:
        return hash(self.identity)


@dataclasses.dataclass(frozen=True, eq=False)
class Passes:
    """How a loss is computed in an outer step: in microbatches, each a `Term`.

    Attributes:
        losses: Of outputs and targets, one an example.
        model: What is trained.
        microbatch: Most examples in one pass; None for any.
        autocast: Half-precision dtype, if any.
        seed: Which random numbers dropout sees.
    """

    losses: Loss
    model: nn.Module
    microbatch: int | None
    autocast: torch.dtype | None
    seed: int

    def terms(
        self, mode: Mode, examples: Examples, dtype: torch.dtype, place: Place, pathwise: Place | None = None
    ) -> list[Term]:
        """The loss over the first examples, as many as there are at a place.

        Args:
            mode: The model's.
            examples: Where they are.
            dtype: Of their targets.
            place: Theirs among those of all processes.
            pathwise: That of the first of them, whose derivative by way of the inputs is taken; by default all.
        """
        count, pathwise = len(place), pathwise or place
        smooth, size = len(pathwise), self.microbatch or max(count, 1)
        bounds = [*_bounds(0, smooth, size), *(_bounds(smooth, count, size)[1:] if smooth < count else ())]
        terms = []
        for start, stop in itertools.pairwise(bounds):
            # Each microbatch has a dropout mask of its own.
            model = PureModel(self.model, mode, self.seed + place.start + start, self.autocast)
            derivative = (stop - start) / max(pathwise.total, 1) if start < max(smooth, 1) else 0.0
            loss, weight = ExampleLosses(self.losses, model, dtype), (stop - start) / max(place.total, 1)
            terms.append(Term(loss, weight, derivative, functools.partial(_floating, examples, slice(start, stop))))
        return terms


def _bounds(start: int, stop: int, size: int) -> list[int]:
    """Of parts no larger than a size, and alike: what is made for one of them does for the others."""
    parts = max(-(-(stop - start) // size), 1)
    return [start + (stop - start) * part // parts for part in range(parts + 1)]


def _floating(examples: Examples, part: slice, given: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
    """A part's inputs and targets, these as floating point that holds whole numbers exactly."""
    inputs, targets = examples(given, part)
    return inputs, targets if targets.is_floating_point() else targets.double()


def per_example(loss: Loss) -> Loss:
    """The loss without its reduction."""
    if isinstance(loss, nn.Module) and hasattr(loss, "reduction"):
        unreduced = copy.deepcopy(loss)
        setattr(unreduced, "reduction", "none")  # noqa: B010 -- nn.Module types its attributes as tensors and modules
        return functools.partial(_mean_over_all_but_examples, unreduced)
    try:
        if "reduction" in inspect.signature(loss).parameters:
            return functools.partial(_mean_over_all_but_examples, functools.partial(loss, reduction="none"))
    except ValueError:  # a built-in without a signature
        pass
    return loss


def _mean_over_all_but_examples(loss: Loss, outputs: Tensor, targets: Tensor) -> Tensor:
    values = loss(outputs, targets)
    return values.flatten(1).mean(1) if values.ndim > 1 else values
