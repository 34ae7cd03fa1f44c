"""Shards in the layout of WebDataset: tar files of images and labels."""

import itertools
import re
from collections.abc import Sequence
from pathlib import Path

from madao.data.dataset import Dataset, DatasetRequest
from madao.data.datasets.folder import CLASSES, VALIDATION, named_classes
from madao.data.shardindex import index_shard
from madao.data.shards import Shards
from madao.errors import DataError

_SPLITS = {
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(VALIDATION, "val"),
    **dict.fromkeys(("test", "testing"), "test"),
}
_WORD = re.compile(rf"(?:^|[^a-z])({'|'.join(_SPLITS)})(?:[^a-z]|$)")
_BRACES = re.compile(r"\{([^{}]*)\}")
_RANGE = re.compile(r"(\d+)\.\.(\d+)")
_LAYOUT = (
    "expected <root>/train-000.tar … or <root>/train/*.tar, and the same for val and test where there are; or the "
    "shards as 'train-{000..146}.tar'"
)


def webdataset(source: DatasetRequest) -> Dataset:
    """Shards of samples: `key.jpg` (or another image) and `key.cls`, a number, or `key.json` with a `label`.

    `root/train-*.tar` or `root/train/*.tar`, and where there are the same for val and test (or training, validation,
    testing); shards whose names differ by numbers alone, and name no split, are all of train. Names of classes in
    `root/classes.txt`, one a line, otherwise they are numbered. Or root is the training shards: one file, or several
    as `{000..146}` and `{a,b}` say.
    """
    shards, home = _shards(source.root)
    found: dict[str, Shards] = {}
    for split, paths in shards.items():
        images = Shards([index_shard(path) for path in paths], source.side or 256, source.on_error)
        if not len(images):
            raise DataError(f"there is no sample in the {len(paths)} shards of {split} in {home}; {_LAYOUT}")
        found[split] = images
    listed = named_classes(home)
    classes = tuple(map(str, range(int(found["train"].labels.max()) + 1))) if listed is None else listed
    if len(classes) < 2:
        raise DataError(f"{home} has one class, {classes[0] if classes else 'none'}, two or more are needed; {_LAYOUT}")
    known = f"train has {len(classes)}" if listed is None else f"{home / CLASSES} names {len(classes)}"
    for images in found.values():
        worst = int(images.labels.argmax())
        if images.labels[worst] >= len(classes):
            raise DataError(
                f"{images.name(worst)} has the label {int(images.labels[worst])}, but {known} classes, the last one "
                f"{len(classes) - 1}; mend the label, or the list of classes"
            )
    return Dataset("webdataset", classes, found["train"], found.get("val"), found.get("test"), flip=True)


def _shards(root: Path) -> tuple[dict[str, list[Path]], Path]:
    """The shards of each split, and the folder where they lie."""
    if not root.is_dir():
        paths = [Path(name) for name in _expanded(str(root))]
        missing = [path for path in paths if not path.is_file()]
        if missing:
            rest = f" (nor {len(missing) - 1} more)" if len(missing) > 1 else ""
            raise DataError(f"there is no shard {missing[0]}{rest}; {_LAYOUT}")
        return {"train": paths}, paths[0].parent
    found: dict[str, list[Path]] = {}
    strange: list[Path] = []
    for path in sorted(itertools.chain(root.glob("*.tar"), root.glob("*/*.tar"))):
        words = _WORD.findall(str(path.relative_to(root)).lower())
        if words:
            found.setdefault(_SPLITS[words[0]], []).append(path)
        else:
            strange.append(path)
    if not found and strange and all(path.parent == root for path in strange):
        series = {re.sub(r"\d+", "", path.stem): path.name for path in reversed(strange)}  # the first of each
        if len(series) > 1:
            names = sorted(series.values())
            rest = f" and {len(names) - 3} more" if len(names) > 3 else ""
            raise DataError(
                f"{root} has shards of several names, {' and '.join(names[:3])}{rest}, and they do not say which are "
                f"of train, val or test; rename them, or put them into folders; {_LAYOUT}"
            )
        return {"train": strange}, root
    if "train" not in found:
        have = " and ".join([*found, *(str(path.relative_to(root)) for path in strange[:1])])
        raise DataError(f"{root} has {f'{have} but no train' if have else 'no .tar file'}; {_LAYOUT}")
    if strange:
        raise DataError(f"{strange[0]} does not say whether it is of train, val or test; rename or remove it")
    return found, root


def _expanded(text: str) -> Sequence[str]:
    """Names with braces as a shell would give them: `{000..146}` counts, `{a,b}` lists."""
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
