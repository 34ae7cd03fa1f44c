"""The loss of each example, as a function of the parameters, for the outer step."""

import copy
import dataclasses
import functools
import inspect
import itertools
from collections.abc import Callable

import torch
from torch import Tensor, nn

from madao.distributed.group import Shard
from madao.hypergrad import FunctionalModel, Term
from madao.hypergrad.autodiff.functional_model import Mode, upcast
from madao.policy.base_augmentation import normalise

Loss = Callable[..., Tensor]
Examples = Callable[[slice, tuple[Tensor, ...]], tuple[Tensor, Tensor]]
"""`examples(part, inputs)`: what the model sees of a part of a batch, and its targets, from a problem's inputs."""


def augmented_examples(place: int, targets: Tensor | None) -> Examples:
    """The problem's input of this number, with these targets; with None those that are the next input."""
    return lambda part, inputs: (inputs[place][part], (inputs[place + 1] if targets is None else targets)[part])


def validation_examples(images: Tensor, targets: Tensor, transform: Callable[[Tensor], Tensor]) -> Examples:
    """These, whatever the problem's inputs are."""
    return lambda part, _: (transform(normalise(images[part])), targets[part])


class ExampleLosses:
    """`losses(params, (inputs, targets))`, `[B]`; equal to another of the same losses and model.

    Args:
        losses: Of outputs and targets.
        model: In its mode.
    """

    def __init__(self, losses: Loss, model: FunctionalModel) -> None:
        self.losses, self.model = losses, model
        self.identity = (losses, id(model.model), model.mode, model.autocast)

    def __call__(self, params: dict[str, Tensor], examples: tuple[Tensor, Tensor]) -> Tensor:
        """One value an example."""
        return self.of_outputs(self.outputs(params, examples), examples)

    def outputs(self, params: dict[str, Tensor], examples: tuple[Tensor, Tensor]) -> Tensor:
        """The model's, in float32, as mixed-precision training has them for its loss."""
        outputs: Tensor = upcast(self.model(params, examples[0]))
        return outputs

    def of_outputs(self, outputs: Tensor, examples: tuple[Tensor, Tensor]) -> Tensor:
        """The loss of each."""
        return self.losses(outputs, examples[1])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ExampleLosses) and self.identity == other.identity

    def __hash__(self) -> int:
        return hash(self.identity)


@dataclasses.dataclass(frozen=True, eq=False)
class Microbatches:
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

    def terms(self, mode: Mode, examples: Examples, place: Shard, pathwise: Shard | None = None) -> list[Term]:
        """The loss over the first examples, as many as there are at a place.

        Args:
            mode: The model's.
            examples: Where they are.
            place: Theirs among those of all processes.
            pathwise: That of the first of them, whose derivative by way of the inputs is taken; by default all.
        """
        count, pathwise = len(place), pathwise or place
        smooth, size = len(pathwise), self.microbatch or max(count, 1)
        bounds = [*_starts(0, max(smooth, 1), size), *_starts(smooth, count, size), count]
        terms = []
        for start, stop in itertools.pairwise(bounds):
            # Each microbatch has a dropout mask of its own.
            model = FunctionalModel(self.model, mode, self.seed + place.start + start, self.autocast)
            derivative = (stop - start) / max(pathwise.total, 1) if start < max(smooth, 1) else 0.0
            of = functools.partial(examples, slice(start, stop))
            terms.append(Term(ExampleLosses(self.losses, model), (stop - start) / max(place.total, 1), derivative, of))
        return terms


def _starts(start: int, stop: int, size: int) -> range:
    """Of parts no larger than a size: all of one size where as few can be, since each size is compiled for itself."""
    parts = max(-(-(stop - start) // size), 1)
    return range(start, stop, size if (stop - start) % parts else max((stop - start) // parts, 1))


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
