"""A heat map of a conditional policy: how often each class or image draws each operation."""

import html
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from madao.policy import FrozenPolicy, PolicySpec
from madao.policy.display.pictures import data_url

_MOST = 200
"""Largest number of rows. Of more classes, those that differ most from the shared policy are shown."""


def heat_map(policy: PolicySpec, samples: np.ndarray | None = None) -> str:
    """Return a table of selection probabilities, the mean over stages, with a row for each class or image.

    Args:
        policy: The policy. The table is empty unless it is conditional.
        samples: Images for a policy that depends on the image, uint8 `[n, C, H, W]`.
    """
    if policy.classes:
        return _of_classes(policy)
    if policy.network is not None and samples is not None:
        return _of_images(policy, torch.from_numpy(samples.copy()))
    return ""


def _of_classes(policy: PolicySpec) -> str:
    shared = policy.tensors()[0].mean(0)
    each = policy.tables()[0].mean(0)
    departure = (each - shared).abs().sum(1)
    rows = sorted(departure.argsort(descending=True, stable=True)[:_MOST].tolist())
    left = "" if len(rows) == len(policy.classes) else f", the {len(rows)} that differ most from the shared policy"
    names = [html.escape(policy.classes[row]) for row in rows]
    caption = f"How often an image of each class draws each operation, in percent, the mean over stages{left}"
    return _map(policy, "class", names, each[rows], caption)


def _of_images(policy: PolicySpec, images: Tensor) -> str:
    each = FrozenPolicy(policy).tables_of(images)[0].mean(0)
    names = [
        f'<img src="{data_url(image)}" alt="training image {n + 1}" height="32">' for n, image in enumerate(images)
    ]
    caption = "How often each of these training images draws each operation, in percent, the mean over stages"
    return _map(policy, "image", names, each, caption)


def _map(policy: PolicySpec, kind: str, names: Sequence[str], each: Tensor, caption: str) -> str:
    """Return rows of probabilities `each`, `[R, n]`, under names in HTML, and a last row of the shared policy."""
    shared = policy.tensors()[0].mean(0)
    order = shared.argsort(descending=True, stable=True).tolist()
    most = float(torch.cat([each, shared[None]]).max())
    head = "".join(f'<th scope="col">{html.escape(policy.operations[index].name)}</th>' for index in order)
    lines = []
    for name, shares in zip([*names, "shared"], [*each.tolist(), shared.tolist()], strict=True):
        cells = "".join(
            f'<td class="heat" style="--part: {70 * shares[index] / most:.0f}%">{100 * shares[index]:.0f}</td>'
            for index in order
        )
        lines.append(f'<tr><th scope="row">{name}</th>{cells}</tr>')
    several = {"class": "classes", "image": "images"}[kind]
    return (
        f'<figure data-map="{several}"><h3>Selection by {kind}</h3><div class="wide" tabindex="0">'
        f'<table class="map"><thead><tr><th></th>{head}</tr></thead><tbody>{"".join(lines)}</tbody></table></div>'
        f"<figcaption>{caption}; darker is more often. The last row is the shared policy.</figcaption>"
        "</figure>"
    )
