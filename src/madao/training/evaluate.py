"""How well a model does on images that are not augmented."""

import contextlib
from collections.abc import Iterable

import torch
from torch import Tensor, nn

from madao.hypergrad import Ranks
from madao.hypergrad.pure import in_mode
from madao.policy import Standard
from madao.tasks import Classification, Measure, Score


@torch.inference_mode()
def evaluate(
    model: nn.Module,
    batches: Iterable[tuple[Tensor, Tensor]],
    standard: Standard,
    autocast: torch.dtype | None = None,
    ranks: Ranks | None = None,
    measure: Measure | None = None,
) -> Score:
    """Score a model, which is in evaluation mode meanwhile.

    Args:
        model: Gives what is measured.
        batches: uint8 images and targets, on the model's device.
        standard: How images are cut and normalised.
        autocast: Half-precision dtype of the forward passes, if any.
        ranks: The processes that have a part of the batches each; the score is of all of them.
        measure: What takes the batches in. By default that of classification.
    """
    measure = Classification().measure() if measure is None else measure
    with in_mode(model, "eval"):
        for images, targets in batches:
            inputs = standard.normalise(standard.centre(images))
            half = contextlib.nullcontext() if autocast is None else torch.autocast(images.device.type, dtype=autocast)
            with half:
                outputs = measure.outputs(model, inputs).float()
            measure.add(outputs, measure.targets(standard, targets))
    sums = measure.sums()
    if ranks is not None and ranks.world > 1:
        sums = ranks.total((sums.to(next(model.parameters()).device),))[0].cpu()
    return measure.score(sums)
