"""Folders of images with one folder per class."""

import itertools
import os
from collections.abc import Sequence
from pathlib import Path

import torch

from madao.data.dataset import Dataset, DatasetRequest
from madao.data.datasets.image_search import SUFFIXES as SUFFIXES
from madao.data.datasets.image_search import ImageSearch, is_image, list_folders
from madao.data.image_files import ImageFiles
from madao.errors import DataError
from madao.files import open_regular
from madao.text import counted, printable

SPLITS = {
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(("val", "valid", "validation"), "val"),
    **dict.fromkeys(("test", "testing"), "test"),
}
"""By the name of a folder or a shard: the split that it holds."""

CLASSES = "classes.txt"
_LARGEST_LIST = 2**24
_LAYOUT = "expected <root>/<class>/<images>, or <root>/train/<class>/<images>, optionally also under val and test"


def named_classes(root: Path) -> tuple[str, ...] | None:
    """Return the class names in `root/classes.txt`, one per line, or None if there is no such file."""
    path = root / CLASSES
    if not path.is_file():
        return None
    try:
        with open_regular(path) as file:
            content = file.read(_LARGEST_LIST + 1)
    except OSError as error:
        raise DataError(f"cannot read {path} ({error.strerror or error}); make it a list of class names") from None
    if len(content) > _LARGEST_LIST:
        raise DataError(f"{path} has more than {_LARGEST_LIST:,} bytes; expected one class name per line")
    lines = content.decode("utf-8", "replace").splitlines()
    return tuple(printable(line.strip()) for line in lines if line.strip())


def holds_classes(root: Path) -> bool:
    """Return whether a folder, or its folder train, has two or more class folders with an image in each."""
    try:
        return any(_holds_two(place) for place in (root, root / "train") if place.is_dir())
    except OSError:  # unreadable folders count as no class folders
        return False


def _holds_two(place: Path) -> bool:
    with os.scandir(place) as entries:  # a scan needs only names, of which there can be many
        folders = (Path(entry) for entry in entries if entry.is_dir() and not entry.name.startswith("."))
        classes = (path for path in folders if any(map(is_image, path.iterdir())))
        return len([*itertools.islice(classes, 2)]) == 2


def folder(request: DatasetRequest) -> Dataset:
    """Return the images in `root/train`, `root/val` and `root/test`, or all in `root`, each with a folder per class.

    Validation and test images are optional. `SPLITS` holds other names of the three folders.
    """
    root = request.root
    try:
        if not root.is_dir():
            raise DataError(f"there is no folder {root}; `data.root` must be the folder that holds the images")
        return _read(request, *split_folders(root))
    except OSError as error:
        place = printable(error.filename or root)
        raise DataError(f"cannot read {place} ({error.strerror or error}); allow reading it or remove it") from None


def _read(request: DatasetRequest, splits: dict[str, Path], notes: tuple[str, ...]) -> Dataset:
    search = ImageSearch(request.on_error)
    places = splits or {"train": request.root}
    names = _class_folders(places["train"])
    found = {split: _search(search, place, names) for split, place in places.items()}

    def files(by_label: dict[int, dict[str, Path]]) -> ImageFiles:
        paths = [path for images in by_label.values() for path in images.values()]
        labels = [label for label, images in by_label.items() for _ in images]
        return ImageFiles(paths, torch.tensor(labels), request.side or 256, request.on_error, request.max_pixels)

    return Dataset(
        name="folder",
        classes=_class_names(names, places["train"]),
        train=files(found["train"]),
        validation=files(found["val"]) if "val" in found else None,
        test=files(found["test"]) if "test" in found else None,
        flip=True,
        skipped=tuple(search.unreadable),
        notes=(*notes, *search.notes(), *_shared_images(found, places)),
    )


def split_folders(root: Path) -> tuple[dict[str, Path], tuple[str, ...]]:
    """Return the folder of each split, and a line about folders beside them that are not used.

    The folders of a root are splits if one of them is called train, or if there are training images and others by
    other names of `SPLITS`. Otherwise they are classes, and the result is empty.
    """
    folders = list_folders(root)
    found: dict[str, list[Path]] = {}
    for path in folders:
        if path.name.lower() in SPLITS:
            found.setdefault(SPLITS[path.name.lower()], []).append(path)
    if folders and "train" not in found and sum(map(len, found.values())) == len(folders):
        raise DataError(f"{root} has {' and '.join(path.name for path in folders)} but no train; {_LAYOUT}")
    if not any(path.name == "train" for path in folders) and not ("train" in found and len(found) > 1):
        return {}, ()
    for paths in found.values():
        if len(paths) > 1:
            names = " and ".join(path.name for path in paths)
            raise DataError(f"{root} has {names}, which mean the same; keep one of them")
    unused = [printable(path.name) for path in folders if path.name.lower() not in SPLITS]
    note = f"not used: {_some(unused)} in {printable(root)}; the known folders are train, val and test"
    ordered = {split: found[split][0] for split in dict.fromkeys(SPLITS.values()) if split in found}
    return ordered, (note,) if unused else ()


def _some(names: Sequence[str]) -> str:
    """Return the first three names, and the number of others."""
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def _class_folders(root: Path) -> list[str]:
    """Return the names of the class folders of the training images."""
    names = [path.name for path in list_folders(root)]
    if not names:
        found = "images but no class folder" if any(map(is_image, root.iterdir())) else "no class folder"
        if any(root.glob("*.tar")):
            found = "no class folder but .tar files; read them with `data.name=webdataset`"
        raise DataError(f"{root} has {found}; {_LAYOUT}")
    if len(names) == 1:
        raise DataError(f"{root} has one class, {printable(names[0])}, two or more are needed; {_LAYOUT}")
    return names


def _class_names(folders: Sequence[str], root: Path) -> tuple[str, ...]:
    """Return the names of class folders as text that can be shown and written to any file."""
    names = tuple(map(printable, folders))
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise DataError(f"two class folders of {root} are shown as {twice}; rename one of them")
    return names


def _search(search: ImageSearch, root: Path, names: Sequence[str]) -> dict[int, dict[str, Path]]:
    """Return the images of each label: their paths by their real paths.

    An image in one class folder that a link in another leads to belongs to the class that it is in.
    """
    found: dict[int, dict[str, Path]] = {}
    known: dict[str, Path] = {}
    twice: list[tuple[Path, Path]] = []
    folders = {path.name: path for path in list_folders(root)}
    labels = {name: label for label, name in enumerate(names)}
    home = os.path.join(os.path.realpath(root), "")
    for place in folders.values():
        if place.name not in labels:
            raise DataError(f"{printable(place)} is a class that train does not have; add it there or remove it here")
        reached = search.below(place)
        owners = {real: _first_folder(real, home) for real in reached}
        images = {real: reached[real] for real, owner in owners.items() if owner == place.name or owner not in folders}
        search.repeated += len(reached) - len(images)
        if not images:
            raise DataError(f"{printable(place)} has no image; add some ({' '.join(SUFFIXES)}) or remove the folder")
        twice += [(known[real], path) for real, path in images.items() if real in known]
        known |= images
        found[labels[place.name]] = images
    if not found:
        raise DataError(f"{root} has no class folder; {_LAYOUT}")
    if twice:
        one, other = map(printable, twice[0])
        raise DataError(
            f"two classes of {root} share {counted(len(twice), 'image')}: {one} and {other} are one file; keep it in "
            "one of them"
        )
    return found


def _first_folder(path: str, home: str) -> str | None:
    """Return the name of the folder in `home` that holds a path, or None if the path is elsewhere."""
    return path.removeprefix(home).split(os.sep)[0] if path.startswith(home) else None


def _shared_images(found: dict[str, dict[int, dict[str, Path]]], places: dict[str, Path]) -> list[str]:
    """Return a line for each two splits that share images."""
    notes = []
    whole = {
        split: {real: path for part in parts.values() for real, path in part.items()} for split, parts in found.items()
    }
    for one, other in itertools.combinations(whole, 2):
        shared = [path for real, path in whole[other].items() if real in whole[one]]
        if shared:
            notes.append(
                f"{places[one].name} and {places[other].name} share {counted(len(shared), 'image')}, such as "
                f"{printable(shared[0])}: the error on {places[other].name} says less about new images"
            )
    return notes
