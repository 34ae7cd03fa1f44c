"""A hash of a data set, the same wherever it is stored."""

import dataclasses
import hashlib

import torch

from madao.config.train_config import DataConfig
from madao.data import Images, InMemoryImages, LazyImages
from madao.training.splits import load_dataset

_SAMPLED = 256
"""Number of images in each split whose content counts, evenly spaced. All labels count."""
_GENERATED = ("digits", "shapes")
"""Data sets that are generated, so that no files count."""


def dataset_hash(config: DataConfig) -> str:
    """Return 16 hexadecimal digits that are the same for the same images on every machine.

    The hash is of the stored bytes, because decoding and scaling differ between machines by rounding.

    Raises:
        UserError: The data cannot be read.
    """
    dataset = load_dataset(dataclasses.replace(config, size=None))
    digest = hashlib.sha256(repr((dataset.name, dataset.classes)).encode())
    for images in (dataset.train, dataset.validation, dataset.test) if dataset.name not in _GENERATED else ():
        digest.update(b"none" if images is None else _content(images))
    return digest.hexdigest()[:16]


def _content(images: Images) -> bytes:
    count = min(len(images), _SAMPLED)
    sampled = [int(i) for i in torch.arange(count) * len(images) // max(count, 1)]
    digest = hashlib.sha256(repr((len(images), images.shape)).encode())
    digest.update(images.labels.numpy().tobytes())
    if isinstance(images, LazyImages):
        for index in sampled:
            digest.update(images.read(index))
    elif isinstance(images, InMemoryImages):
        for tensor in (images.images, images.masks):
            if tensor is not None:
                digest.update(tensor[sampled].numpy().tobytes())
    return digest.digest()
