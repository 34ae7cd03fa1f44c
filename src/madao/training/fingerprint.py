"""Digests of labelled images, by which a run that resumes recognises its data."""

import hashlib
from collections.abc import Iterable
from typing import Any

import numpy as np

from madao.data import ImageFiles, Images, InMemoryImages, Shards


def digest_labels(splits: Iterable[Images | None]) -> str:
    """Return a digest of all labels or masks of some splits, in their order."""
    return _digest(b"" if images is None else _bytes(images.targets.cpu().numpy()) for images in splits)


def digest_order(splits: Iterable[Images | None]) -> str:
    """Return a digest of the order of images: of the pixels of images in memory, of the names of others.

    The folder of the data does not count, so that it may move. The content of files does not count either, so that a
    damaged file may be replaced.
    """
    return _digest(_identity(images) for images in splits)


def _identity(images: Images | None) -> bytes | memoryview:
    if isinstance(images, InMemoryImages):
        return _bytes(images.images.cpu().numpy())
    if isinstance(images, ImageFiles):
        names = (f"{path.parent.name}/{path.name}" for path in images.paths)
        return "\0".join(names).encode(errors="surrogateescape")
    if isinstance(images, Shards):
        keys = np.concatenate([index.keys for index in images.indices])
        return _bytes(keys[images.samples.numpy()])
    return b""


def _bytes(array: np.ndarray[Any, np.dtype[Any]]) -> memoryview:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


def _digest(parts: Iterable[bytes | memoryview]) -> str:
    """Return 16 hexadecimal digits."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(len(part).to_bytes(8, "little"))
        digest.update(part)
    return digest.hexdigest()[:16]
