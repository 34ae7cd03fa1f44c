"""A check whether images that are evaluated were trained on."""

import contextlib
import hashlib
from collections.abc import Iterator
from typing import Literal

import torch

from madao.config.train_config import DataConfig, TrainConfig
from madao.data import Images, InMemoryImages, LazyImages
from madao.errors import UserError
from madao.text import counted
from madao.training.splits import Splits, load_dataset, set_aside

_EVALUATED = 1_000
_TRAINED = 100_000
"""The most images that are compared: a second or two of reading names and sizes of files."""
_PIXELS_A_SIDE = 16


def trained_on_warning(
    config: TrainConfig, data: DataConfig, split: Literal["test", "validation"], splits: Splits
) -> str | None:
    """Return a warning if images of an evaluation have the same content as training images of the run.

    At most 1,000 of them are compared with at most 100,000 training images, both evenly spaced.

    Args:
        config: The settings of the run.
        data: The data of the evaluation.
        split: The split that is evaluated.
        splits: The data of the evaluation, loaded.

    Returns:
        The warning; None if there are no such images, or if they cannot be compared.
    """
    shared, compared = _count(config, data, split, splits)
    if not shared:
        return None
    images = counted(compared, f"{split} image")
    return f"the model was trained on {shared:,} of {images}; its error on new images is likely higher"


def _count(config: TrainConfig, data: DataConfig, split: str, splits: Splits) -> tuple[int, int]:
    if data.root == config.data.root:
        return count_shared(splits.train, splits.test if split == "test" else splits.validation)
    with contextlib.suppress(UserError, OSError):  # the training images may be gone
        trained, *_ = set_aside(load_dataset(config.data), config.data)
        dataset = load_dataset(data)
        return count_shared(trained, dataset.test if split == "test" else set_aside(dataset, data)[1])
    return 0, 0


def count_shared(trained: Images, evaluated: Images | None) -> tuple[int, int]:
    """Count the evaluated images that are also training images, and those that were compared."""
    if isinstance(trained, InMemoryImages) and isinstance(evaluated, InMemoryImages):
        known, keys = {*_pixel_keys(trained, _TRAINED)}, [*_pixel_keys(evaluated, _EVALUATED)]
        return sum(key in known for key in keys), len(keys)
    if isinstance(trained, LazyImages) and isinstance(evaluated, LazyImages):
        return _count_files(trained, evaluated)
    return 0, 0


def _pixel_keys(images: InMemoryImages, most: int) -> Iterator[bytes]:
    """Yield a digest of evenly spaced pixels of each image."""
    height, width = images.shape[1:]
    down, right = max(height // _PIXELS_A_SIDE, 1), max(width // _PIXELS_A_SIDE, 1)
    indices = _evenly_spaced(len(images), most)
    for pixels in images.images[:, :, ::down, ::right][indices].cpu().numpy():
        yield _digest(pixels.tobytes())


def _count_files(trained: LazyImages, evaluated: LazyImages) -> tuple[int, int]:
    """Count evaluated files with the content of a training file. Training files of other lengths are not read."""
    by_length: dict[int, list[bytes]] = {}
    compared = _evenly_spaced(len(evaluated), _EVALUATED)
    for index in compared:
        with contextlib.suppress(OSError):
            by_length.setdefault(evaluated.length(index), []).append(_digest(evaluated.read(index)))
    found: set[bytes] = set()
    for index in _evenly_spaced(len(trained), _TRAINED):
        with contextlib.suppress(OSError):
            if trained.length(index) in by_length:
                found.add(_digest(trained.read(index)))
    return sum(digest in found for digests in by_length.values() for digest in digests), len(compared)


def _digest(content: bytes) -> bytes:
    return hashlib.blake2b(content, digest_size=16).digest()


def _evenly_spaced(count: int, most: int) -> list[int]:
    chosen = min(count, most)
    indices: list[int] = (torch.arange(chosen) * count // max(chosen, 1)).tolist()
    return indices
