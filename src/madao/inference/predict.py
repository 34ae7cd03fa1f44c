"""Predictions for image files, a batch at a time."""

import dataclasses
import functools
import glob
import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from madao.data.datasets.image_search import SUFFIXES, ImageSearch
from madao.data.image_files import read_image
from madao.data.loading import load_batches
from madao.errors import UserError
from madao.inference.image_model import ImageModel
from madao.inference.preprocessing import Preprocessing

_AHEAD = 2
"""Batches from which on worker processes read: fewer are read sooner than processes start."""


@dataclasses.dataclass(frozen=True)
class Prediction:
    """The prediction for a file.

    Attributes:
        path: The file.
        classes: The most likely classes, the likeliest first. For segmentation, the classes of the most pixels.
        shares: The probability of each of them. For segmentation, its share of the pixels.
        error: Why the file cannot be read; None if it can.
    """

    path: Path
    classes: tuple[str, ...] = ()
    shares: tuple[float, ...] = ()
    error: str | None = None


def expand_paths(given: Sequence[str]) -> list[Path]:
    """Return the image files that files, folders and glob patterns name, each once.

    Folders are searched like those of training images. A file that is named itself may have any suffix.

    Raises:
        UserError: There is no such file, or a folder or a pattern leads to no image.
    """
    found: dict[Path, None] = {}
    for name in given:
        path = Path(name)
        matches = [path] if path.exists() else [Path(match) for match in sorted(glob.glob(name, recursive=True))]
        if not matches:
            raise UserError(f"there is no file or folder {name}, and no file matches it as a pattern")
        found_below = (ImageSearch("skip").below(match).values() if match.is_dir() else [match] for match in matches)
        files = [*itertools.chain.from_iterable(found_below)]
        if not files:
            raise UserError(f"{name} has no image; expected files that end in {' '.join(SUFFIXES)}")
        found.update(dict.fromkeys(files))
    return [*found]


def predict_files(
    model: ImageModel, paths: Sequence[Path], *, top: int = 3, batch_size: int = 64, workers: int = 0
) -> Iterator[Prediction]:
    """Predict files one batch after the other, in their order. Only a few batches are in memory at a time.

    Args:
        model: The model, on its device.
        paths: The files.
        top: Number of classes for each file.
        batch_size: Files of one batch.
        workers: Processes that decode files. 0 decodes in this process, as do one or two batches.

    Yields:
        The prediction for each file, or why it cannot be read.

    Raises:
        UserError: The model predicts no classes.
    """
    if model.task == "moco":
        raise UserError(
            "the model computes features, not classes (task moco); compute them in Python by madao.load_model"
        )
    device = model.preprocessing.mean.device
    parts = [[*range(start, min(start + batch_size, len(paths)))] for start in range(0, len(paths), batch_size)]
    read = functools.partial(_read, model.preprocessing, paths)
    for decoded, errors in load_batches(read, parts, workers if len(parts) > _AHEAD else 0):
        with torch.inference_mode():  # not around the yield: the caller's code would run in it
            images = [torch.from_numpy(pixels).to(device) for pixels in decoded]
            rows = iter(_shares(model, images) if images else ())
            found = [
                Prediction(path, error=error) if error else _most(path, next(rows), model.classes, top)
                for path, error in errors.items()
            ]
        yield from found


def _read(
    preprocessing: Preprocessing, paths: Sequence[Path], indices: Sequence[int]
) -> tuple[list[NDArray[np.uint8]], dict[Path, str]]:
    """Return the images of a batch that can be read, and for each file why it cannot, or an empty text."""
    # Arrays, since tensors would travel from worker processes by an open file each.
    images, errors = [], {}
    for path in (paths[index] for index in indices):
        try:
            images.append(preprocessing.decode(read_image(path)).numpy())
            errors[path] = ""
        except Exception as error:  # Pillow raises errors of many types
            errors[path] = " ".join(str(error).split()) or type(error).__name__
    return images, errors


def _shares(model: ImageModel, images: list[Tensor]) -> Tensor:
    """Return the share of each class in each image, `[B, classes]`."""
    if model.task != "segmentation":
        return model(torch.stack(images)).softmax(1)  # type: ignore[no-any-return]
    masks = [model(image).argmax(0) for image in images]
    return torch.stack([mask.flatten().bincount(minlength=len(model.classes)) / mask.numel() for mask in masks])


def _most(path: Path, shares: Tensor, classes: Sequence[str], top: int) -> Prediction:
    values, places = shares.topk(min(top, len(classes)))
    return Prediction(path, tuple(classes[place] for place in places.tolist()), tuple(values.tolist()))
