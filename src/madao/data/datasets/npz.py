"""Arrays in an .npz file with the names of Keras or MedMNIST."""

from pathlib import Path
from typing import Any

import numpy as np
import torch

from madao.data.dataset import Dataset, DatasetRequest
from madao.data.in_memory_images import InMemoryImages
from madao.errors import DataError
from madao.files import open_regular
from madao.text import printable

# Keys of images and labels. `{}` is train, val or test.
_STYLES = (("x_{}", "y_{}"), ("{}_images", "{}_labels"))
_KEYS = {key.format(split) for style in _STYLES for key in style for split in ("train", "val", "test")}
_EXPECTED = (
    "x_train, y_train and optionally x_val, y_val, x_test, y_test; "
    "or train_images, train_labels and optionally val_images, val_labels, test_images, test_labels"
)

Array = np.ndarray[Any, np.dtype[Any]]


def npz(request: DatasetRequest) -> Dataset:
    """Return the images of the .npz file `root`, or of the only .npz file in the folder `root`.

    Images are not flipped, since the file does not say whether a mirrored image keeps its class.
    """
    path = _find(request.root)
    try:
        with open_regular(path) as stream, np.load(stream, allow_pickle=False) as file:
            names = [printable(name, limit=80) for name in sorted(file.files)[:20]]
            arrays = {key: file[key] for key in file.files if key in _KEYS}
            if not all(isinstance(array, np.ndarray) for array in arrays.values()):
                raise ValueError("it has members that are no arrays")
    except Exception as error:  # zipfile, its decompressors and numpy raise errors of many types
        reason = printable(" ".join(str(error).split()) or type(error).__name__, limit=300)
        raise DataError(f"cannot read {path} as arrays of numbers ({reason}); write it with numpy.savez") from None
    train = _split(arrays, "train", path)
    if train is None:
        raise DataError(f"{path} holds {', '.join(names) or 'nothing'}; expected {_EXPECTED}")
    classes = np.unique(train[1])
    if len(classes) < 2:
        raise DataError(
            f"{path} has the classes {classes.tolist()} in train, two or more are needed; add images of other classes"
        )

    own = _pixels(*train, classes, f"train of {path}").resized(request.side)
    others: dict[str, InMemoryImages] = {}
    for name in ("val", "test"):
        split = _split(arrays, name, path)
        if split is not None:
            other = others[name] = _pixels(*split, classes, f"{name} of {path}").resized(request.side)
            if other.shape != own.shape:
                raise DataError(f"{name} of {path} has images {other.shape}, train {own.shape}; make them the same")
    return Dataset("npz", tuple(map(str, classes.tolist())), own, others.get("val"), others.get("test"), flip=False)


def _find(root: Path) -> Path:
    if root.is_file():
        return root
    found = sorted(root.glob("*.npz"))
    if len(found) != 1:
        reason = f"{root} holds {len(found)} .npz files, not one" if root.is_dir() else f"there is no file {root}"
        raise DataError(f"{reason}; set `data.root` to the file")
    return found[0]


def _split(arrays: dict[str, Array], name: str, path: Path) -> tuple[Array, Array] | None:
    """Return images and labels `[N]` of a split, or None if the file has no such split."""
    for style in _STYLES:
        images, labels = (key.format(name) for key in style)
        if images in arrays and labels in arrays:
            return arrays[images], _labels(arrays[labels], f"{labels} of {path}")
        if images in arrays or labels in arrays:
            here, missing = (images, labels) if images in arrays else (labels, images)
            raise DataError(f"{path} holds {here} but no {missing}; expected {_EXPECTED}")
    return None


def _labels(labels: Array, name: str) -> Array:
    if labels.ndim == 2 and labels.shape[1] == 1:
        labels = labels[:, 0]
    if labels.ndim != 1 or labels.dtype.kind not in "iu":
        raise DataError(
            f"{name} is {labels.dtype} {list(labels.shape)}, expected whole numbers [N] or [N, 1]; "
            "convert one-hot rows with labels.argmax(1); several labels per image are not supported"
        )
    return labels


def _pixels(images: Array, labels: Array, classes: Array, name: str) -> InMemoryImages:
    if images.ndim == 3:
        images = images[..., None]
    if not images.size:
        raise DataError(f"the images in {name} are {list(images.shape)}: there are none; add images, or leave it out")
    if images.ndim != 4 or images.shape[-1] not in (1, 3):
        raise DataError(
            f"the images in {name} are {list(images.shape)}, expected [N, H, W], [N, H, W, 1] or [N, H, W, 3]"
        )
    if images.dtype.kind == "f" and images.size and images.min() >= 0 and images.max() <= 1:
        images = (images * 255).round().astype(np.uint8)
    if images.dtype != np.uint8:
        span = f" from {images.min()} to {images.max()}" if images.dtype.kind in "biuf" else ""
        raise DataError(f"the images in {name} are {images.dtype}{span}, expected uint8 or floats from 0 to 1")
    unknown = np.setdiff1d(labels, classes)
    if len(unknown):
        raise DataError(f"{name} has the label {unknown[0]}, which train does not have; remove its images")
    channels_first = np.ascontiguousarray(images.transpose(0, 3, 1, 2))
    return InMemoryImages(torch.from_numpy(channels_first), torch.from_numpy(np.searchsorted(classes, labels)))
