"""How well a model does on images that are not augmented."""

import contextlib
import dataclasses
from collections.abc import Iterable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from madao.hypergrad import Ranks
from madao.hypergrad.pure import in_mode
from madao.policy import Standard


@dataclasses.dataclass(frozen=True)
class Score:
    """The mean cross-entropy and the part of images that were misclassified, over `count` images."""

    loss: float
    error: float
    count: int


@torch.inference_mode()
def evaluate(
    model: nn.Module,
    batches: Iterable[tuple[Tensor, Tensor]],
    standard: Standard,
    autocast: torch.dtype | None = None,
    ranks: Ranks | None = None,
) -> Score:
    """Score a model, which is in evaluation mode meanwhile.

    Args:
        model: Gives logits.
        batches: uint8 images and labels, on the model's device.
        standard: How images are cut and normalised.
        autocast: Half-precision dtype of the forward passes, if any.
        ranks: The processes that have a part of the batches each; the score is of all of them.
    """
    loss, wrong, count = 0.0, 0, 0
    with in_mode(model, "eval"):
        for images, labels in batches:
            inputs = standard.normalise(standard.centre(images))
            half = contextlib.nullcontext() if autocast is None else torch.autocast(images.device.type, dtype=autocast)
            with half:
                logits = model(inputs).float()
            loss += float(F.cross_entropy(logits, labels, reduction="sum").double())
            wrong += int((logits.argmax(1) != labels).sum())
            count += len(labels)
    if ranks is not None and ranks.world > 1:
        device = next(model.parameters()).device
        sums = ranks.total((torch.tensor([loss, wrong, count], dtype=torch.float64, device=device),))[0].tolist()
        loss, wrong, count = sums[0], int(sums[1]), int(sums[2])
    return Score(loss / max(count, 1), wrong / max(count, 1), count)
