"""Shards in the format of WebDataset: tar files of images and labels."""

import itertools
import re
from collections.abc import Sequence
from pathlib import Path

from madao.data.dataset import Dataset, DatasetRequest
from madao.data.datasets.folder import CLASSES, SPLITS, named_classes
from madao.data.shard_index import index_shard
from madao.data.shards import Shards
from madao.errors import DataError
from madao.text import counted, printable

_WORD = re.compile(rf"(?:^|[^a-z])({'|'.join(SPLITS)})(?:[^a-z]|$)")
_BRACES = re.compile(r"\{([^{}]*)\}")
_RANGE = re.compile(r"(\d+)\.\.(\d+)")
_LAYOUT = (
    "expected <root>/train-000.tar … or <root>/train/*.tar, and optionally the same for val and test; or the shards "
    "as 'train-{000..146}.tar'"
)


def webdataset(request: DatasetRequest) -> Dataset:
    """Return the images of shards. A sample is `key.jpg` (or another image) and `key.cls` or `key.json`.

    `key.cls` holds the number of the class. `key.json` holds it under `label`. Shards of the training images are
    `root/train-*.tar` or `root/train/*.tar`, and the same for val and test; training, validation and testing are known
    too. If no name contains a split, and names differ only in numbers, all shards belong to train. Alternatively,
    `root` is one training shard or a pattern such as `{000..146}` or `{a,b}`. `classes.txt` beside the shards names the
    classes, one per line. Otherwise they are numbered.
    """
    shards, home = _shards(request.root)
    found: dict[str, Shards] = {}
    for split, paths in shards.items():
        images = Shards(
            [index_shard(path) for path in paths], request.side or 256, request.on_error, max_pixels=request.max_pixels
        )
        if not len(images):
            raise DataError(f"the {len(paths)} shards of {split} in {home} have no sample; {_LAYOUT}")
        found[split] = images
    listed = named_classes(home)
    classes = _numbered_classes(found["train"]) if listed is None else listed
    if len(classes) < 2:
        raise DataError(f"{home} has one class, {classes[0] if classes else 'none'}, two or more are needed; {_LAYOUT}")
    known = f"train has {len(classes)}" if listed is None else f"{home / CLASSES} names {len(classes)}"
    for images in found.values():
        worst = int(images.labels.argmax())
        if images.labels[worst] >= len(classes):
            raise DataError(
                f"{images.name(worst)} has the label {int(images.labels[worst])}, but {known} classes, the last one "
                f"{len(classes) - 1}; correct the label or the list of classes"
            )
    return Dataset("webdataset", classes, found["train"], found.get("val"), found.get("test"), flip=True)


def _numbered_classes(train: Shards) -> tuple[str, ...]:
    """Return the numbers of the classes as their names. Each class needs an image, which limits their number."""
    worst = int(train.labels.argmax())
    count = int(train.labels[worst]) + 1
    if count > len(train):
        raise DataError(
            f"{train.name(worst)} has the label {count - 1}, so there are {count:,} classes, but only "
            f"{counted(len(train), 'image')} to learn them from; number the classes from 0 on"
        )
    return tuple(map(str, range(count)))


def _shards(root: Path) -> tuple[dict[str, list[Path]], Path]:
    """Return the shards of each split, and their folder."""
    if not root.is_dir():
        paths = [Path(name) for name in _expanded(str(root))]
        missing = [path for path in paths if not path.is_file()]
        if missing:
            rest = f" (nor {len(missing) - 1} more)" if len(missing) > 1 else ""
            raise DataError(f"there is no shard {missing[0]}{rest}; {_LAYOUT}")
        return {"train": paths}, paths[0].parent
    found: dict[str, list[Path]] = {}
    strange: list[Path] = []
    for path in _tar_files(root):
        words = _WORD.findall(str(path.relative_to(root)).lower())
        if words:
            found.setdefault(SPLITS[words[0]], []).append(path)
        else:
            strange.append(path)
    if not found and strange and all(path.parent == root for path in strange):
        series = {re.sub(r"\d+", "", path.stem): path.name for path in reversed(strange)}  # first shard of each
        if len(series) > 1:
            names = sorted(series.values())
            rest = f" and {len(names) - 3} more" if len(names) > 3 else ""
            raise DataError(
                f"{root} has shards of several names, {' and '.join(names[:3])}{rest}, without train, val or test in "
                f"them; rename them, or put them into folders; {_LAYOUT}"
            )
        return {"train": strange}, root
    if "train" not in found:
        have = " and ".join([*found, *(str(path.relative_to(root)) for path in strange[:1])])
        raise DataError(f"{root} has {f'{have} but no train' if have else 'no .tar file'}; {_LAYOUT}")
    if strange:
        raise DataError(f"the name of {strange[0]} has no train, val or test in it; rename or remove it")
    return found, root


def _tar_files(root: Path) -> list[Path]:
    """Return the tar files in a folder and in the folders in it."""
    try:
        here = list(root.iterdir())
        below = itertools.chain.from_iterable(path.iterdir() for path in here if path.is_dir())
        return sorted(path for path in (*here, *below) if path.suffix == ".tar" and not path.is_dir())
    except OSError as error:
        place = printable(error.filename or root)
        raise DataError(f"cannot read {place} ({error.strerror or error}); allow reading it or remove it") from None


def _expanded(text: str) -> Sequence[str]:
    """Expand braces as a shell does: `{000..146}` counts, `{a,b}` lists."""
    match = _BRACES.search(text)
    if match is None:
        return [text]
    span = _RANGE.fullmatch(match[1])
    if span is None:
        options = match[1].split(",")
    else:
        first, last = int(span[1]), int(span[2])
        if first > last:
            raise DataError(
                f"{match[0]} in {text} counts down, from {first} to {last}; write {{{span[2]}..{span[1]}}}; {_LAYOUT}"
            )
        options = [f"{number:0{len(span[1])}}" for number in range(first, last + 1)]
    rest = [text[: match.start()] + option + text[match.end() :] for option in options]
    return [name for each in rest for name in _expanded(each)]
