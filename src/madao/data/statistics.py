"""Exact mean and standard deviation of images."""

import torch

from madao.data.images import Images
from madao.data.loading import load_batches
from madao.errors import DataError


def mean_and_std(images: Images, most: int = 10_000, workers: int = 0) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return mean and standard deviation of each channel, for images in [0, 1].

    Args:
        images: The images to measure.
        most: Maximal number of images to read. They are evenly spaced.
        workers: Number of processes that read. 0 reads in this process.

    Returns:
        The means, and the standard deviations, which are at least 0.001 to allow division.
    """
    count = min(len(images), most)
    indices = torch.arange(count) * len(images) // max(count, 1)
    batches = [batch.tolist() for batch in indices.split(256)] if count else []
    # Pixels take 256 values, so integer counts of each are exact in whatever batches they are added.
    histogram = torch.zeros(images.shape[0], 256, dtype=torch.int64)
    for batch, _ in load_batches(images.load, batches, workers):
        for channel, row in enumerate(histogram):
            row += torch.bincount(batch[:, channel].flatten(), minlength=256)
    if not histogram.any():
        raise DataError(f"no mean can be computed: none of {count} images could be read")
    share = histogram.double() / histogram.sum(1, keepdim=True)
    value = torch.arange(256, dtype=torch.float64) / 255
    mean = share @ value
    std = (share * (value - mean[:, None]) ** 2).sum(1).sqrt().clamp(min=1e-3)
    return tuple(mean.tolist()), tuple(std.tolist())
