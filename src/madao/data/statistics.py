"""Mean and standard deviation of images, exactly."""

import torch

from madao.data.images import Images
from madao.data.loading import load_batches
from madao.errors import DataError


def mean_and_std(images: Images, most: int = 10_000, workers: int = 0) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Per channel, of images in [0, 1].

    Args:
        images: Whose.
        most: How many images are looked at, evenly spaced.
        workers: How many processes read; 0: this one.

    Returns:
        The means, and the standard deviations, each at least 0.001 so that it can be divided by.
    """
    count = min(len(images), most)
    indices = torch.arange(count) * len(images) // max(count, 1)
    batches = [batch.tolist() for batch in indices.split(256)] if count else []
    # Pixels take 256 values: how often each comes says all, in whole numbers, so batches leave no trace.
    histogram = torch.zeros(images.shape[0], 256, dtype=torch.int64)
    for batch, _ in load_batches(images.load, batches, workers):
        for channel, row in enumerate(histogram):
            row += torch.bincount(batch[:, channel].flatten(), minlength=256)
    if not histogram.any():
        raise DataError(f"there is no mean over images: none of {count} could be read")
    share = histogram.double() / histogram.sum(1, keepdim=True)
    value = torch.arange(256, dtype=torch.float64) / 255
    mean = share @ value
    std = (share * (value - mean[:, None]) ** 2).sum(1).sqrt().clamp(min=1e-3)
    return tuple(mean.tolist()), tuple(std.tolist())
