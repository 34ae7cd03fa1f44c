"""How well a model does on images that are not augmented."""

import contextlib
from collections.abc import Callable, Iterable, Iterator

import torch
from torch import Tensor, nn

from madao.data import Images
from madao.distributed.group import ProcessGroup
from madao.hypergrad.autodiff.functional_model import in_mode
from madao.policy import BaseAugmentation
from madao.tasks import Classification, EvalResult, Metric

_COMPARED = 50_000
"""Most training images that others are compared with: all of CIFAR's, and a check that stays cheap on ImageNet."""


@torch.inference_mode()
def evaluate(
    model: nn.Module,
    batches: Iterable[tuple[Tensor, Tensor]],
    standard: BaseAugmentation,
    autocast: torch.dtype | None = None,
    ranks: ProcessGroup | None = None,
    measure: Metric | None = None,
    known: Callable[[], Iterable[tuple[Tensor, Tensor]]] | None = None,
) -> EvalResult:
    """Score a model, which is in evaluation mode meanwhile.

    Args:
        model: Gives what is measured.
        batches: uint8 images and targets, on the model's device.
        standard: How images are cut and normalised.
        autocast: Half-precision dtype of the forward passes, if any.
        ranks: The processes that have a part of the batches each; the score is of all of them.
        measure: What takes the batches in. By default that of classification.
        known: Gives batches of training images, for measures that compare.
    """
    measure = Classification().measure() if measure is None else measure

    def answers(batches: Iterable[tuple[Tensor, Tensor]]) -> Iterator[tuple[Tensor, Tensor]]:
        for images, targets in batches:
            inputs = standard.normalise(standard.centre(images))
            half = contextlib.nullcontext() if autocast is None else torch.autocast(images.device.type, dtype=autocast)
            with half:
                outputs = measure.outputs(model, inputs).float()
            yield outputs, measure.targets(standard, targets)

    with in_mode(model, "eval"):
        if measure.compares and known is not None:
            tensors = [torch.cat(part) for part in zip(*answers(known()), strict=True)]
            outputs, targets = tensors if ranks is None else [ranks.all_gather(tensor) for tensor in tensors]
            measure.compare_with(outputs, targets)
        for outputs, targets in answers(batches):
            measure.add(outputs, targets)
    sums = measure.sums()
    if ranks is not None and ranks.world > 1:
        sums = ranks.all_reduce_sum((sums.to(next(model.parameters()).device),))[0].cpu()
    return measure.score(sums)


def to_compare_with(images: Images) -> Images:
    """At most 50,000 of the images, evenly spaced."""
    if len(images) <= _COMPARED:
        return images
    return images.subset(torch.arange(_COMPARED) * len(images) // _COMPARED)
