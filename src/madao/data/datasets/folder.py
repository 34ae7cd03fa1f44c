"""A folder of images, one folder per class."""

import itertools
import os
from pathlib import Path

import torch

from madao.data.dataset import Dataset, DatasetRequest
from madao.data.files import ImageFiles
from madao.errors import DataError

SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".webp", ".gif", ".tif", ".tiff", ".ppm")
VALIDATION = ("val", "valid", "validation")
CLASSES = "classes.txt"


def named_classes(root: Path) -> tuple[str, ...] | None:
    """The names in `root/classes.txt`, one a line, for data whose labels are numbers; None without such a file."""
    path = root / CLASSES
    if not path.is_file():
        return None
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    return tuple(line.strip() for line in lines if line.strip())


_LAYOUT = "expected <root>/<class>/<images>, or <root>/train/<class>/<images> and the same under val and test"


def holds_classes(root: Path) -> bool:
    """Whether a folder looks like a folder per class: two or more with an image in each, here or under train."""
    try:
        return any(_holds_two(place) for place in (root, root / "train") if place.is_dir())
    except OSError:  # what may not be read may hold anything
        return False


def _holds_two(place: Path) -> bool:
    with os.scandir(place) as entries:  # which may be many, and are not asked for more than their names
        folders = (Path(entry) for entry in entries if entry.is_dir() and not entry.name.startswith("."))
        classes = (path for path in folders if any(map(_is_image, path.iterdir())))
        return len([*itertools.islice(classes, 2)]) == 2


def folder(source: DatasetRequest) -> Dataset:
    """`root/train/<class>/*`, and where there are `root/val` and `root/test`; or all in `root/<class>/*`."""
    root = source.root
    if not root.is_dir():
        raise DataError(f"there is no folder {root}; --data.root names the folder that holds the images")
    names = [path.name for path in _folders(root)]
    if "train" not in names:
        if names and set(names) <= {*VALIDATION, "test"}:
            raise DataError(f"{root} has {' and '.join(names)} but no train; {_LAYOUT}")
        classes = _classes(root)
        return Dataset("folder", classes, _files(root, classes, source), validation=None, test=None, flip=True)
    validations = [name for name in VALIDATION if name in names]
    if len(validations) > 1:
        raise DataError(f"{root} has {' and '.join(validations)}, which mean the same; keep one")
    classes = _classes(root / "train")
    return Dataset(
        name="folder",
        classes=classes,
        train=_files(root / "train", classes, source),
        validation=_files(root / validations[0], classes, source) if validations else None,
        test=_files(root / "test", classes, source) if "test" in names else None,
        flip=True,
    )


def _folders(root: Path) -> list[Path]:
    return sorted(path for path in root.iterdir() if path.is_dir() and not path.name.startswith("."))


def _classes(root: Path) -> tuple[str, ...]:
    classes = tuple(path.name for path in _folders(root))
    if not classes:
        found = "images but no class folder" if _images(root) else "no class folder"
        if any(root.glob("*.tar")):
            found = "no class folder but .tar files, which --data.name webdataset reads"
        raise DataError(f"{root} has {found}; {_LAYOUT}")
    if len(classes) == 1:
        raise DataError(f"{root} has one class, {classes[0]}, two or more are needed; {_LAYOUT}")
    return classes


def _images(root: Path) -> list[Path]:
    """Every image below, sorted. Hidden files and folders are none of ours."""
    found = []
    for where, folders, files in os.walk(root, followlinks=True):
        folders[:] = [name for name in folders if not name.startswith(".")]
        found += [path for path in (Path(where, name) for name in files) if _is_image(path)]
    return sorted(found)


def _is_image(path: Path) -> bool:
    return path.name.lower().endswith(SUFFIXES) and not path.name.startswith(".")


def _files(root: Path, classes: tuple[str, ...], source: DatasetRequest) -> ImageFiles:
    paths: list[Path] = []
    labels: list[int] = []
    for place in _folders(root):
        if place.name not in classes:
            raise DataError(f"{place} is a class that train does not have; add it there or remove it here")
        images = _images(place)
        if not images:
            raise DataError(f"{place} has no image; add some ({' '.join(SUFFIXES)}) or remove the folder")
        paths += images
        labels += [classes.index(place.name)] * len(images)
    if not paths:
        raise DataError(f"{root} has no class folder; {_LAYOUT}")
    return ImageFiles(paths, torch.tensor(labels), source.side or 256, source.on_error)
