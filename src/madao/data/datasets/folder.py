"""Folders of images with one folder per class."""

import itertools
import os
from pathlib import Path

import torch

from madao.data.dataset import Dataset, DatasetRequest
from madao.data.image_files import ImageFiles
from madao.errors import DataError

SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".webp", ".gif", ".tif", ".tiff", ".ppm")
VALIDATION = ("val", "valid", "validation")
CLASSES = "classes.txt"
_LAYOUT = "expected <root>/<class>/<images>, or <root>/train/<class>/<images>, optionally also under val and test"


def named_classes(root: Path) -> tuple[str, ...] | None:
    """Return the class names in `root/classes.txt`, one per line, or None if there is no such file."""
    path = root / CLASSES
    if not path.is_file():
        return None
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    return tuple(line.strip() for line in lines if line.strip())


def holds_classes(root: Path) -> bool:
    """Return whether a folder, or its folder train, has two or more class folders with an image in each."""
    try:
        return any(_holds_two(place) for place in (root, root / "train") if place.is_dir())
    except OSError:  # unreadable folders count as no class folders
        return False


def _holds_two(place: Path) -> bool:
    with os.scandir(place) as entries:  # a scan needs only names, of which there can be many
        folders = (Path(entry) for entry in entries if entry.is_dir() and not entry.name.startswith("."))
        classes = (path for path in folders if any(map(_is_image, path.iterdir())))
        return len([*itertools.islice(classes, 2)]) == 2


def folder(request: DatasetRequest) -> Dataset:
    """Return the images in `root/train`, `root/val` and `root/test`, or all in `root`, each with a folder per class.

    `root/val` (or `valid`, or `validation`) and `root/test` are optional.
    """
    root = request.root
    if not root.is_dir():
        raise DataError(f"there is no folder {root}; `data.root` must be the folder that holds the images")
    names = [path.name for path in _folders(root)]
    if "train" not in names:
        if names and set(names) <= {*VALIDATION, "test"}:
            raise DataError(f"{root} has {' and '.join(names)} but no train; {_LAYOUT}")
        classes = _classes(root)
        return Dataset("folder", classes, _files(root, classes, request), validation=None, test=None, flip=True)
    validations = [name for name in VALIDATION if name in names]
    if len(validations) > 1:
        raise DataError(f"{root} has {' and '.join(validations)}, which mean the same; keep one of them")
    classes = _classes(root / "train")
    return Dataset(
        name="folder",
        classes=classes,
        train=_files(root / "train", classes, request),
        validation=_files(root / validations[0], classes, request) if validations else None,
        test=_files(root / "test", classes, request) if "test" in names else None,
        flip=True,
    )


def _folders(root: Path) -> list[Path]:
    return sorted(path for path in root.iterdir() if path.is_dir() and not path.name.startswith("."))


def _classes(root: Path) -> tuple[str, ...]:
    classes = tuple(path.name for path in _folders(root))
    if not classes:
        found = "images but no class folder" if find_images(root) else "no class folder"
        if any(root.glob("*.tar")):
            found = "no class folder but .tar files; read them with `data.name=webdataset`"
        raise DataError(f"{root} has {found}; {_LAYOUT}")
    if len(classes) == 1:
        raise DataError(f"{root} has one class, {classes[0]}, two or more are needed; {_LAYOUT}")
    return classes


def find_images(root: Path) -> list[Path]:
    """Return all images below a folder, sorted. Hidden files and folders are ignored."""
    found = []
    for where, folders, files in os.walk(root, followlinks=True):
        folders[:] = [name for name in folders if not name.startswith(".")]
        found += [path for path in (Path(where, name) for name in files) if _is_image(path)]
    return sorted(found)


def _is_image(path: Path) -> bool:
    return path.name.lower().endswith(SUFFIXES) and not path.name.startswith(".")


def _files(root: Path, classes: tuple[str, ...], request: DatasetRequest) -> ImageFiles:
    paths: list[Path] = []
    labels: list[int] = []
    for place in _folders(root):
        if place.name not in classes:
            raise DataError(f"{place} is a class that train does not have; add it there or remove it here")
        images = find_images(place)
        if not images:
            raise DataError(f"{place} has no image; add some ({' '.join(SUFFIXES)}) or remove the folder")
        paths += images
        labels += [classes.index(place.name)] * len(images)
    if not paths:
        raise DataError(f"{root} has no class folder; {_LAYOUT}")
    return ImageFiles(paths, torch.tensor(labels), request.side or 256, request.on_error)
