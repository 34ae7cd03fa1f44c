"""Folders of images with a folder of their masks."""

from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from madao.data.dataset import Dataset, DatasetRequest
from madao.data.datasets.folder import SUFFIXES, VALIDATION, named_classes
from madao.data.decoding import centre_square
from madao.data.image_files import ImageFiles
from madao.data.in_memory_images import InMemoryImages
from madao.errors import DataError
from madao.labels import IGNORED

_LAYOUT = "expected <root>/images and <root>/masks, or both under <root>/train and optionally under val and test"


def masks(request: DatasetRequest) -> Dataset:
    """Return `root/images/*` with `root/masks/*.png` of the same names, or such folders under train, val and test.

    A mask is a grey or palette PNG. Its values are classes, counted from 0, and 255 for pixels that do not count.
    `classes.txt` in the root names the classes, one per line. Images and masks are cropped and resized in the same way
    and held in memory.
    """
    root = request.root
    if not root.is_dir():
        raise DataError(f"there is no folder {root}; `data.root` must be the folder that holds images and masks")
    split = root / "train" if (root / "train").is_dir() else root
    train = _pixels(split, request)
    validation = next((root / name for name in VALIDATION if split != root and (root / name).is_dir()), None)
    others = {
        name: None if place is None or not place.is_dir() else _pixels(place, request)
        for name, place in (("validation", validation), ("test", root / "test" if split != root else None))
    }
    classes = _classes(root, train)
    for name, pixels in (("training", train), *others.items()):
        if pixels is not None:
            _check(pixels, classes, name)
    return Dataset("masks", classes, train, others["validation"], others["test"], flip=True)


def is_mask_folder(root: Path) -> bool:
    """Return whether a folder holds images and masks rather than a folder per class."""
    return any((place / "images").is_dir() and (place / "masks").is_dir() for place in (root, root / "train"))


def _pixels(place: Path, request: DatasetRequest) -> InMemoryImages:
    images = place / "images"
    if not images.is_dir() or not (place / "masks").is_dir():
        raise DataError(f"{place} has no folders images and masks; {_LAYOUT}")
    paths = sorted(path for path in images.iterdir() if path.suffix.lower() in SUFFIXES)
    if not paths:
        raise DataError(f"{images} has no image; add some ({' '.join(SUFFIXES)})")
    side = request.side or 256
    files = ImageFiles(paths, torch.zeros(len(paths), dtype=torch.int64), side, request.on_error)
    pictures, planes = [], []
    for index, path in enumerate(paths):
        picture = files.decoded(index)
        try:
            plane = _decode_mask(place / "masks" / f"{path.stem}.png", path, side)
        except DataError:
            if request.on_error == "stop":
                raise
            continue
        if picture is not None:
            pictures.append(picture)
            planes.append(plane)
    if not pictures:
        raise DataError(f"none of the {len(paths)} images of {images} could be read with their masks")
    return InMemoryImages(torch.stack(pictures), torch.zeros(len(pictures), dtype=torch.int64), torch.stack(planes))


def _decode_mask(path: Path, image: Path, side: int) -> Tensor:
    """Decode a mask to a square, uint8 `[side, side]`: cropped as its image, resized to the nearest pixel."""
    from PIL import Image, ImageOps

    if not path.is_file():
        raise DataError(f"{image} has no mask {path}; add it or remove the image")
    try:
        with Image.open(path) as mask, Image.open(image) as picture:
            if mask.mode not in ("L", "P", "1"):
                raise ValueError(f"its mode is {mask.mode}; expected L or P, one class per pixel")
            if mask.size != ImageOps.exif_transpose(picture).size:
                raise ValueError(f"it has {mask.size} pixels, its image {picture.size}")
            plane = torch.from_numpy(np.array(mask).astype(np.uint8))
    except Exception as error:  # Pillow raises errors of many types
        reason = " ".join(str(error).split())
        raise DataError(f"cannot read {path} as a mask ({reason}); write it as a PNG of classes") from None
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
