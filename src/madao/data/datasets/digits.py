"""Handwritten digits that come with scikit-learn, optionally with a shift to find: nothing to download."""

import torch
import torch.nn.functional as F
from torch import Tensor

from madao.data.dataset import Dataset, DatasetRequest
from madao.data.datasets.synthetic_shift import BY_TONE, PLANTED, plant
from madao.data.images import InMemoryImages
from madao.errors import DataError

_SIDE = 16
_COPIES = 4
"""How often each validation and test digit occurs, each time with a shift of its own."""


def digits(source: DatasetRequest) -> Dataset:
    """1,797 digits of 16 × 16 pixels: half to learn from, a quarter each to choose and to be measured by.

    `source.planted` moves the validation and test digits and leaves the training digits upright, so that the
    operation which a policy should find is known.
    """
    from sklearn.datasets import load_digits

    if source.planted not in PLANTED:
        raise DataError(f"--data.shift must be one of {', '.join(PLANTED)}, got {source.planted!r}")
    bundled = load_digits()
    labels = torch.from_numpy(bundled.target).to(torch.int64)
    values = torch.from_numpy(bundled.images)[:, None].to(torch.float32) / 16
    scaled = F.interpolate(values, size=_SIDE, mode="bicubic", align_corners=False).clamp(0, 1)
    images = (scaled * 255).round().to(torch.uint8)
    if source.planted == BY_TONE:
        images[1::2] = 255 - images[1::2]
    # The split belongs to the data, so that runs with different seeds are measured by the same digits.
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    train, validation, test = order.split([899, 449, 449])

    def moved(indices: Tensor, seed: int) -> InMemoryImages:
        if source.planted == "none":
            return InMemoryImages(images[indices], labels[indices]).resized(source.side)
        repeated = indices.repeat(_COPIES)
        shifted = plant(images[repeated], labels[repeated], source.planted, seed)
        return InMemoryImages(shifted, labels[repeated]).resized(source.side)

    return Dataset(
        name="digits",
        classes=tuple(str(name) for name in bundled.target_names),
        train=InMemoryImages(images[train], labels[train]).resized(source.side),
        validation=moved(validation, seed=1),
        test=moved(test, seed=2),
        flip=False,
    )
