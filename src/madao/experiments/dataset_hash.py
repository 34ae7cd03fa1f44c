"""What tells one data set from another, wherever it lies."""

import dataclasses
import hashlib

import torch

from madao.config.train_config import DataConfig
from madao.data import Images, InMemoryImages, LazyImages
from madao.training.splits import load_dataset

_LOOKED_AT = 256
"""Images of each split whose content counts, evenly spaced; of the others their labels do."""
_GENERATED = ("digits", "shapes")
"""Data sets that do not depend on where the data lies."""


def fingerprint(config: DataConfig) -> str:
    """The same for the same images on every machine, another for others; 16 digits.

    Images count as they are stored, before anything is decoded or scaled: that differs by a rounding from machine to
    machine.

    Raises:
        UserError: The data cannot be read.
    """
    dataset = load_dataset(dataclasses.replace(config, size=None))
    digest = hashlib.sha256(repr((dataset.name, dataset.classes)).encode())
    for images in (dataset.train, dataset.validation, dataset.test) if dataset.name not in _GENERATED else ():
        digest.update(b"none" if images is None else _content(images))
    return digest.hexdigest()[:16]


def _content(images: Images) -> bytes:
    count = min(len(images), _LOOKED_AT)
    looked_at = [int(i) for i in torch.arange(count) * len(images) // max(count, 1)]
    digest = hashlib.sha256(repr((len(images), images.shape)).encode())
    digest.update(images.labels.numpy().tobytes())
    if isinstance(images, LazyImages):
        for index in looked_at:
            digest.update(images.read(index))
    elif isinstance(images, InMemoryImages):
        for tensor in (images.images, images.masks):
            if tensor is not None:
                digest.update(tensor[looked_at].numpy().tobytes())
    return digest.digest()
