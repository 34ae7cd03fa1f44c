"""Training images before and after: each operation at its learned strength, and the whole policy."""

import base64
import dataclasses
import io
from collections.abc import Sequence

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from madao.policy import FrozenPolicy, PolicySpec
from madao.policy.describe import steps
from madao.policy.units import amount, strength

_LARGEST = 112
"""Side of a tile in pixels; larger images are scaled down, smaller ones are left to the page."""
_LOSSLESS = 48
"""Up to this side tiles are PNG; above, JPEG, which is a tenth of the size."""


@dataclasses.dataclass(frozen=True)
class Tile:
    """An image as a data address, and what was done to it."""

    source: str
    caption: str


@dataclasses.dataclass(frozen=True)
class Row:
    """Images side by side, with a heading and a line under it."""

    heading: str
    note: str
    tiles: Sequence[Tile]


@dataclasses.dataclass(frozen=True)
class Gallery:
    """What the page shows.

    Attributes:
        originals: The images as they are.
        stages: For each stage, a row per operation, the likeliest first.
        draws: For each image, a row of draws of the whole policy.
        pixelated: Whether the images are so small that their pixels should stay sharp when enlarged.
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
    """Show a policy on `samples`, uint8 `[n, C, H, W]`; of one with several laws, operations as they are shared.

    Where `labels`, the class of each image, are not known, draws are of what the classes share too.
    """
    batch = torch.from_numpy(samples[:images].copy())
    known = labels is not None and len(labels) > 0 and 0 <= labels.min() <= labels.max() < len(policy.classes)
    shown = torch.from_numpy(labels.astype(np.int64)) if labels is not None and known else None
    return Gallery(
        originals=[Tile(address(image), "as it is") for image in batch],
        stages=[_operations(policy, stage, batch) for stage in range(len(policy.stages))],
        draws=_draws(policy, batch[: min(4, images)], shown, draws, seed),
        pixelated=max(batch.shape[2:]) <= _LOSSLESS,
    )


def _operations(policy: PolicySpec, stage: int, batch: Tensor) -> list[Row]:
    selection, _, magnitude = policy.tensors()
    # Signed operations turn one way on one image and the other way on the next.
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
        tiles = [Tile(address(image), caption) for image, caption in zip(results, captions, strict=True)]
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
        tiles = [Tile(address(batch[number]), "as it is"), *(Tile(address(results[i]), captions[i]) for i in places)]
        rows.append(Row("", "", tiles))
    return rows


def address(image: Tensor) -> str:
    """A uint8 `[C, H, W]` image as a data address."""
    array = image.permute(1, 2, 0).numpy()
    picture = Image.fromarray(array[..., 0] if array.shape[2] == 1 else array)
    if max(picture.size) > _LARGEST:
        picture.thumbnail((_LARGEST, _LARGEST), Image.Resampling.LANCZOS)
    file = io.BytesIO()
    lossless = max(picture.size) <= _LOSSLESS
    picture.save(file, "PNG" if lossless else "JPEG", **({} if lossless else {"quality": 82}))
    kind = "png" if lossless else "jpeg"
    return f"data:image/{kind};base64,{base64.b64encode(file.getvalue()).decode()}"
