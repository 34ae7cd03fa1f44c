"""Folders of images with a folder of their masks."""

from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from madao.data.dataset import Dataset, DatasetRequest
from madao.data.datasets.folder import SUFFIXES, named_classes, split_folders
from madao.data.decoding import centre_square, upright_size
from madao.data.image_files import ImageFiles, read_image
from madao.data.image_formats import ImageTooLargeError, limit_pixels, open_image
from madao.data.in_memory_images import InMemoryImages
from madao.data.lazy_images import SkippedImage
from madao.errors import DataError
from madao.labels import IGNORED
from madao.text import printable

_LAYOUT = "expected <root>/images and <root>/masks, or both under <root>/train and optionally under val and test"
_SPLIT_NAMES = {"train": "training", "val": "validation", "test": "test"}


def masks(request: DatasetRequest) -> Dataset:
    """Return `root/images/*` with `root/masks/*.png` of the same names, or such folders under train, val and test.

    A mask is a grey or palette PNG. Its values are classes, counted from 0, and 255 for pixels that do not count.
    `classes.txt` in the root names the classes, one per line. Images and masks are cropped and resized in the same way
    and held in memory.
    """
    root = request.root
    if not root.is_dir():
        raise DataError(f"there is no folder {root}; `data.root` must be the folder that holds images and masks")
    skipped: list[SkippedImage] = []
    try:
        splits, notes = split_folders(root)
        found = {split: _pixels(place, request, skipped) for split, place in (splits or {"train": root}).items()}
    except OSError as error:
        place = printable(error.filename or root)
        raise DataError(f"cannot read {place} ({error.strerror or error}); allow reading it or remove it") from None
    classes = _classes(root, found["train"])
    for split, pixels in found.items():
        _check(pixels, classes, _SPLIT_NAMES[split])
    return Dataset(
        name="masks",
        classes=classes,
        train=found["train"],
        validation=found.get("val"),
        test=found.get("test"),
        flip=True,
        skipped=tuple(skipped),
        notes=notes,
    )


def is_mask_folder(root: Path) -> bool:
    """Return whether a folder holds images and masks rather than a folder per class."""
    return any((place / "images").is_dir() and (place / "masks").is_dir() for place in (root, root / "train"))


def _pixels(place: Path, request: DatasetRequest, skipped: list[SkippedImage]) -> InMemoryImages:
    images = place / "images"
    if not images.is_dir() or not (place / "masks").is_dir():
        raise DataError(f"{place} has no folders images and masks; {_LAYOUT}")
    paths = sorted(path for path in images.iterdir() if path.suffix.lower() in SUFFIXES)
    if not paths:
        raise DataError(f"{images} has no image; add some ({' '.join(SUFFIXES)})")
    side = request.side or 256
    labels = torch.zeros(len(paths), dtype=torch.int64)
    files = ImageFiles(paths, labels, side, request.on_error, request.max_pixels)
    pictures, planes = [], []
    for index, path in enumerate(paths):
        picture = files.decoded(index)
        if picture is None:
            skipped.append(files.describe_skipped(index))
            continue
        try:
            planes.append(_decode_mask(place / "masks" / f"{path.stem}.png", path, side, request.max_pixels))
        except (DataError, ImageTooLargeError) as error:
            if request.on_error == "stop" and isinstance(error, DataError):
                raise
            skipped.append(SkippedImage(files.name(index), printable(error)))
            continue
        pictures.append(picture)
    if not pictures:
        raise DataError(f"none of the {len(paths)} images of {images} could be read with their masks")
    return InMemoryImages(torch.stack(pictures), torch.zeros(len(pictures), dtype=torch.int64), torch.stack(planes))


def _decode_mask(path: Path, image: Path, side: int, max_pixels: int) -> Tensor:
    """Decode a mask to a square, uint8 `[side, side]`: cropped as its image, resized to the nearest pixel."""
    if not path.is_file():
        raise DataError(f"{printable(image)} has no mask {printable(path)}; add it or remove the image")
    try:
        with open_image(read_image(path, max_pixels)) as mask, open_image(read_image(image, max_pixels)) as picture:
            limit_pixels(mask, max_pixels)
            if mask.mode not in ("L", "P", "1"):
                raise ValueError(f"its mode is {mask.mode}; expected L or P, one class per pixel")
            if mask.size != upright_size(picture):
                raise ValueError(f"it has {mask.size} pixels, its image {upright_size(picture)}")
            plane = torch.from_numpy(np.array(mask).astype(np.uint8))
    except ImageTooLargeError:
        raise
    except Exception as error:  # Pillow raises errors of many types
        reason = " ".join(str(error).split())
        raise DataError(f"cannot read {printable(path)} as a mask ({reason}); write it as a PNG of classes") from None
    return F.interpolate(centre_square(plane[None])[None], size=(side, side), mode="nearest-exact")[0, 0]


def _classes(root: Path, train: InMemoryImages) -> tuple[str, ...]:
    names = named_classes(root)
    if names is not None:
        return names
    found = [value for value in train.targets.unique().tolist() if value != IGNORED]
    return tuple(map(str, range(max(found, default=-1) + 1)))


def _check(pixels: InMemoryImages, classes: tuple[str, ...], split: str) -> None:
    beyond = [value for value in pixels.targets.unique().tolist() if len(classes) <= value != IGNORED]
    if len(classes) < 2 or beyond:
        value = f"the class {beyond[0]}" if beyond else f"{len(classes)} class"
        raise DataError(
            f"the {split} masks have {value}, but there are {len(classes)} classes ({', '.join(classes[:4])}); "
            f"expected two or more, counted from 0, and {IGNORED} for pixels that do not count; list all in classes.txt"
        )
