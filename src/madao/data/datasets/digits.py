"""The handwritten digits of scikit-learn, optionally with a synthetic shift. Nothing is downloaded."""

import torch
import torch.nn.functional as F
from torch import Tensor

from madao.data.dataset import Dataset, DatasetRequest
from madao.data.datasets.synthetic_shift import BY_TONE, PLANTED, plant
from madao.data.in_memory_images import InMemoryImages
from madao.errors import DataError

_SIDE = 16
_COPIES = 4
"""Number of copies of each validation and test digit. Each copy has another shift."""


def digits(request: DatasetRequest) -> Dataset:
    """Return 1,797 digits of 16 × 16 pixels: half for training, a quarter each for validation and test.

    `request.shift` moves only the validation and test digits, so that the best operation is known beforehand.
    """
    from sklearn.datasets import load_digits

    if request.shift not in PLANTED:
        raise DataError(f"`data.shift` must be one of {', '.join(PLANTED)}, got {request.shift!r}")
    bundled = load_digits()
    labels = torch.from_numpy(bundled.target).to(torch.int64)
    values = torch.from_numpy(bundled.images)[:, None].to(torch.float32) / 16
    scaled = F.interpolate(values, size=_SIDE, mode="bicubic", align_corners=False).clamp(0, 1)
    images = (scaled * 255).round().to(torch.uint8)
    if request.shift == BY_TONE:
        images[1::2] = 255 - images[1::2]
    # One split for all seeds, so that all runs are measured on the same digits.
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    train, validation, test = order.split([899, 449, 449])

    def moved(indices: Tensor, seed: int) -> InMemoryImages:
        if request.shift == "none":
            return InMemoryImages(images[indices], labels[indices]).resized(request.side)
        repeated = indices.repeat(_COPIES)
        shifted = plant(images[repeated], labels[repeated], request.shift, seed)
        return InMemoryImages(shifted, labels[repeated]).resized(request.side)

    return Dataset(
        name="digits",
        classes=tuple(str(name) for name in bundled.target_names),
        train=InMemoryImages(images[train], labels[train]).resized(request.side),
        validation=moved(validation, seed=1),
        test=moved(test, seed=2),
        flip=False,
    )
