"""The losses of an outer step, example by example, as functions of the model's parameters."""

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
from madao.hypergrad.autodiff.functional_model import Mode
from madao.hypergrad.autodiff.twice_differentiable import upcast
from madao.policy.base_augmentation import normalise

Loss = Callable[..., Tensor]
Examples = Callable[[slice, tuple[Tensor, ...]], tuple[Tensor, Tensor]]
"""`examples(part, inputs)` returns the model's input and the targets for a part of a batch."""


def augmented_examples(place: int, targets: Tensor | None) -> Examples:
    """Return examples from the inputs of a `Problem`.

    Args:
        place: The number of the input that holds the images.
        targets: The targets; None if the next input holds them.
    """
    return lambda part, inputs: (inputs[place][part], (inputs[place + 1] if targets is None else targets)[part])


def validation_examples(images: Tensor, targets: Tensor, transform: Callable[[Tensor], Tensor]) -> Examples:
    """Return examples of validation images, which do not depend on the inputs of a `Problem`."""
    return lambda part, _: (transform(normalise(images[part])), targets[part])


class ExampleLosses:
    """The losses `[B]` of examples, as a `SplitLoss`: `losses(params, (inputs, targets))`.

    Two instances with the same losses, model, mode and autocast are equal, so they share traced code.

    Args:
        losses: `losses(outputs, targets)`, one value an example.
        model: The model, in its mode.
    """

    def __init__(self, losses: Loss, model: FunctionalModel) -> None:
        self.losses, self.model = losses, model
        self.identity = (losses, id(model.model), model.mode, model.autocast)

    def __call__(self, params: dict[str, Tensor], examples: tuple[Tensor, Tensor]) -> Tensor:
        """Return one loss for each example."""
        return self.of_outputs(self.outputs(params, examples), examples)

    def outputs(self, params: dict[str, Tensor], examples: tuple[Tensor, Tensor]) -> Tensor:
        """Return the outputs of the model in float32, as mixed-precision training does before the loss."""
        outputs: Tensor = upcast(self.model(params, examples[0]))
        return outputs

    def of_outputs(self, outputs: Tensor, examples: tuple[Tensor, Tensor]) -> Tensor:
        """Return the loss of each example from the outputs."""
        return self.losses(outputs, examples[1])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ExampleLosses) and self.identity == other.identity

    def __hash__(self) -> int:
        return hash(self.identity)


@dataclasses.dataclass(frozen=True, eq=False)
class Microbatches:
    """A loss that is computed in microbatches, each of which is a `Term`.

    Attributes:
        losses: `losses(outputs, targets)`, one value an example.
        model: The model that is trained.
        microbatch: The largest number of examples in one pass; None for all.
        autocast: The half-precision dtype of the forward pass, if any.
        seed: The seed of dropout. Each microbatch has its own mask.
    """

    losses: Loss
    model: nn.Module
    microbatch: int | None
    autocast: torch.dtype | None
    seed: int

    def terms(self, mode: Mode, examples: Examples, place: Shard, pathwise: Shard | None = None) -> list[Term]:
        """Return the mean loss over the examples of a shard.

        Args:
            mode: The mode of the model.
            examples: Returns the examples of each microbatch.
            place: The shard of this process.
            pathwise: The shard of the first examples, whose derivative in the inputs is taken. By default all.
        """
        count, pathwise = len(place), pathwise or place
        smooth, size = len(pathwise), self.microbatch or max(count, 1)
        bounds = [*_starts(0, max(smooth, 1), size), *_starts(smooth, count, size), count]
        terms = []
        for start, stop in itertools.pairwise(bounds):
            model = FunctionalModel(self.model, mode, self.seed + place.start + start, self.autocast)
            derivative = (stop - start) / max(pathwise.total, 1) if start < max(smooth, 1) else 0.0
            of = functools.partial(examples, slice(start, stop))
            terms.append(Term(ExampleLosses(self.losses, model), (stop - start) / max(place.total, 1), derivative, of))
        return terms


def _starts(start: int, stop: int, size: int) -> range:
    """Return the starts of parts of at most `size`. They are equal where possible: each size is compiled separately."""
    parts = max(-(-(stop - start) // size), 1)
    return range(start, stop, size if (stop - start) % parts else max((stop - start) // parts, 1))


def per_example(loss: Loss) -> Loss:
    """Return the loss without its reduction."""
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
