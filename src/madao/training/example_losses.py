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


class ExampleLosses:
    """`losses(params, inputs)` of a part of a batch, `[B]`; equal to another of the same model, tensors and part.

    Args:
        losses: Of outputs and targets.
        model: In its mode.
        targets: Of the whole batch; None where they are given, behind their inputs.
        part: Which examples.
        own: Images, and what turns them into inputs, where those that are given do not matter.
        draws: Inputs that follow each other for each of the targets.
        place: Which of several inputs that are given.
    """

    def __init__(
        self,
        losses: Loss,
        model: PureModel,
        targets: Tensor | None,
        part: slice,
        own: tuple[Tensor, Callable[[Tensor], Tensor]] | None,
        draws: int = 1,
        place: int = 0,
    ) -> None:
        self.losses, self.model, self.targets, self.part, self.own = losses, model, targets, part, own
        self.draws, self.place = draws, place
        images, transform = (None, None) if own is None else (id(own[0]), own[1])
        how = (losses, id(model.model), model.mode, model.autocast, transform)
        self.identity = (*how, id(targets), part.start, part.stop, images, draws, place)

    def __call__(self, params: dict[str, Tensor], given: tuple[Tensor, ...]) -> Tensor:
        """One value an example."""
        return self.of_outputs(self.outputs(params, given), given)

    def outputs(self, params: dict[str, Tensor], given: tuple[Tensor, ...]) -> Tensor:
        """The model's, in float32, as mixed-precision training has them for its loss."""
        if self.own is None:
            inputs = given[self.place]
        else:
            images, transform = self.own
            inputs = transform(normalise(images))
        outputs: Tensor = raised(self.model(params, inputs[self.part]))
        return outputs

    def of_outputs(self, outputs: Tensor, given: tuple[Tensor, ...]) -> Tensor:
        """The loss of each."""
        targets = given[self.place + 1] if self.targets is None else self.targets
        if self.draws > 1 and self.targets is not None:
            targets = targets.repeat_interleave(self.draws, 0)
        return self.losses(outputs, targets[self.part])

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
        self,
        mode: Mode,
        targets: Tensor | None,
        place: Place,
        own: tuple[Tensor, Callable[[Tensor], Tensor]] | None = None,
        draws: int = 1,
        given: int = 0,
        pathwise: Place | None = None,
    ) -> list[Term]:
        """The loss over the first examples, as many as there are at a place; arguments as of `ExampleLosses`."""
        count, pathwise = len(place), pathwise or place
        smooth, size = len(pathwise), self.microbatch or max(count, 1)
        bounds = [*range(0, max(smooth, 1), size), *range(smooth, count, size), count]
        terms = []
        for start, stop in itertools.pairwise(bounds):
            part = slice(start, stop)
            # Each microbatch has a dropout mask of its own.
            model = PureModel(self.model, mode, self.seed + place.start + start, self.autocast)
            loss = ExampleLosses(self.losses, model, targets, part, own, draws, given)
            derivative = (stop - start) / max(pathwise.total, 1) if start < max(smooth, 1) else 0.0
            terms.append(Term(loss, (stop - start) / max(place.total, 1), derivative))
        return terms


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
