"""Training images under each operation at its learned strength, and under the whole policy."""

import dataclasses
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from madao.policy import FrozenPolicy, PolicySpec
from madao.policy.describe import steps
from madao.policy.display.pictures import data_url, is_pixel_art
from madao.policy.units import amount, strength


@dataclasses.dataclass(frozen=True)
class Tile:
    """An image as a data URL, with a caption that names the operations applied to it."""

    source: str
    caption: str


@dataclasses.dataclass(frozen=True)
class Row:
    """Images side by side, with a heading and a note under it."""

    heading: str
    note: str
    tiles: Sequence[Tile]


@dataclasses.dataclass(frozen=True)
class Gallery:
    """Images for the page.

    Attributes:
        originals: The unchanged images.
        stages: For each stage, a row for each operation, the most probable first.
        draws: For each image, a row of draws from the whole policy.
        pixelated: Whether pixels should stay sharp when the page enlarges the images.
    """

    originals: Sequence[Tile]
    stages: Sequence[Sequence[Row]]
    draws: Sequence[Row]
    pixelated: bool


def gallery(
    policy: PolicySpec,
    samples: np.ndarray,
    labels: np.ndarray | None = None,
    images: int = 6,
    draws: int = 7,
    seed: int = 0,
) -> Gallery:
    """Apply a policy to images.

    Args:
        policy: The policy. For a conditional one, the rows of operations show the shared policy.
        samples: Training images, uint8 `[n, C, H, W]`.
        labels: The class of each image. Without it, draws from a class-conditional policy use the shared policy.
        images: Number of images in each row.
        draws: Number of draws for each image.
        seed: The seed of the draws.
    """
    batch = torch.from_numpy(samples[:images].copy())
    known = labels is not None and len(labels) > 0 and 0 <= labels.min() <= labels.max() < len(policy.classes)
    shown = torch.from_numpy(labels.astype(np.int64)) if labels is not None and known else None
    return Gallery(
        originals=[Tile(data_url(image), "original") for image in batch],
        stages=[_operations(policy, stage, batch) for stage in range(len(policy.stages))],
        draws=_draws(policy, batch[: min(4, images)], shown, draws, seed),
        pixelated=is_pixel_art(batch.shape[2:]),
    )


def _operations(policy: PolicySpec, stage: int, batch: Tensor) -> list[Row]:
    selection, _, magnitude = policy.tensors()
    # Signed operations alternate their direction from image to image.
    signs = torch.ones(len(batch))
    signs[1::2] = -1
    rows = []
    for index in selection[stage].argsort(descending=True, stable=True).tolist():
        operation, entry = policy.operations[index], policy.stages[stage][index]
        mu = magnitude[stage, index].expand(len(batch)).contiguous()
        results = operation(batch, mu, signs, policy.fill)
        captions = [operation.name] * len(batch)
        if operation.has_magnitude:
            values = operation.value(mu, signs).tolist()
            captions = [f"{operation.name} {amount(operation, value)}" for value in values]
        tiles = [Tile(data_url(image), caption) for image, caption in zip(results, captions, strict=True)]
        note = f"drawn {100 * entry.selection:.1f} %, then applied {100 * entry.application:.0f} %"
        shown = strength(operation, entry.magnitude, policy.magnitude_jitter)
        rows.append(Row(operation.name, note if shown == "–" else f"{shown}; {note}", tiles))
    return rows


def _draws(policy: PolicySpec, batch: Tensor, labels: Tensor | None, count: int, seed: int) -> list[Row]:
    player = FrozenPolicy(policy.of_class(None) if policy.classes and labels is None else policy, seed)
    repeated = batch.repeat_interleave(count, 0)
    each = None if labels is None else labels[: len(batch)].repeat_interleave(count)
    draw = player.sample(repeated, condition=player.condition(repeated, each))
    results = player.augment(repeated, draw)
    captions = [", then ".join(steps(policy.operations, draw, i)) or "unchanged" for i in range(len(repeated))]
    rows = []
    for number in range(len(batch)):
        places = range(number * count, (number + 1) * count)
        tiles = [Tile(data_url(batch[number]), "original"), *(Tile(data_url(results[i]), captions[i]) for i in places)]
        rows.append(Row("", "", tiles))
    return rows
