"""A few training images that stay with the run, so that a report can show what the policy does to them."""

import io

import numpy as np
from torch import Tensor

from madao.data import Images
from madao.policy import BaseAugmentation

FILE = "samples.npz"
COUNT = 8


def choose(labels: Tensor, count: int = COUNT) -> list[int]:
    """The first image of each class, then the second of each, and so on."""
    seen: dict[int, int] = {}
    ranks = []
    for index, label in enumerate(labels.tolist()):
        seen[label] = seen.get(label, -1) + 1
        ranks.append((seen[label], label, index))
    return [index for _, _, index in sorted(ranks)[:count]]


def archive(images: Images, standard: BaseAugmentation) -> bytes:
    """An .npz file: `images`, uint8 `[n, C, H, W]` as the model sees them, and `labels`."""
    indices = choose(images.labels)
    pixels, read = images.load(indices)
    shown = standard.centre(pixels).cpu().numpy()
    file = io.BytesIO()
    np.savez_compressed(file, images=shown, labels=images.labels[[indices[i] for i in read]].numpy())
    return file.getvalue()
