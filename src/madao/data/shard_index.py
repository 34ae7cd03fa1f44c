"""Indices of tar files: where each sample is. They are built once and stored in small files."""

import dataclasses
import hashlib
import json
import os
import re
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import numpy as np

from madao.errors import DataError
from madao.files import replacing

IMAGES = ("jpg", "jpeg", "png", "ppm", "webp", "bmp", "gif", "tif", "tiff")
_VERSION = 1
_NAME = re.compile(r"((?:.*/)?[^/.]+)\.([^/]*)")
"""Key and extension. As in WebDataset, the extension begins at the first dot of the file's name."""

Array = np.ndarray[Any, np.dtype[Any]]


@dataclasses.dataclass(frozen=True, eq=False)
class ShardIndex:
    """The samples of a shard in their order.

    They are arrays because a million Python objects would be copied to every worker.

    Attributes:
        path: Path of the shard.
        keys: Key of each sample, UTF-8, `S` `[N]`.
        offsets: Offset of each image in bytes, int64 `[N]`.
        sizes: Size of each image in bytes, int64 `[N]`.
        labels: Label of each image, int64 `[N]`.
    """

    path: Path
    keys: Array
    offsets: Array
    sizes: Array
    labels: Array

    def name(self, row: int) -> str:
        """Return the name of a sample for error messages."""
        return f"the sample {self.keys[row].decode()} of {self.path}"


def index_shard(path: Path) -> ShardIndex:
    """Return the index of a shard. An unchanged shard is not read again.

    The index is stored beside the shard, or in the user's cache if that folder is not writable.
    """
    try:
        stat = path.stat()
        stamp = np.array([_VERSION, stat.st_size, stat.st_mtime_ns], dtype=np.int64)
        for place in _places(path):
            stored = _load(place, stamp, path)
            if stored is not None:
                return stored
        index = _read(path)
    except OSError as error:
        raise DataError(f"cannot read the shard {path} ({error.strerror or error}); check `data.root`") from None
    for place in _places(path):
        if _store(place, stamp, index):
            break
    return index


def _places(path: Path) -> tuple[Path, Path]:
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    digest = hashlib.blake2b(str(path.resolve()).encode(), digest_size=16).hexdigest()
    return path.with_name(f".{path.name}.index.npz"), cache / "madao" / "shards" / f"{digest}.npz"


def _load(place: Path, stamp: Array, path: Path) -> ShardIndex | None:
    try:
        with np.load(place, allow_pickle=False) as file:
            if np.array_equal(file["stamp"], stamp):
                return ShardIndex(path, *(file[name] for name in ("keys", "offsets", "sizes", "labels")))
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
        pass  # missing or damaged, so it is built again
    return None


def _store(place: Path, stamp: Array, index: ShardIndex) -> bool:
    arrays = {name: getattr(index, name) for name in ("keys", "offsets", "sizes", "labels")}
    try:
        with replacing(place, concurrent=True) as file:
            np.savez(file, stamp=stamp, **arrays)
    except OSError:
        return False
    return True


def _read(path: Path) -> ShardIndex:
    samples: dict[str, dict[str, tuple[int, int]]] = {}
    key = None
    with path.open("rb") as stream:
        if stream.read(2) == b"\x1f\x8b":
            raise DataError(f"the shard {path} is compressed, so images cannot be found by their offset; gunzip it")
        stream.seek(0)
        try:
            with tarfile.open(fileobj=stream, mode="r:") as shard:
                for member in shard:
                    matched = _NAME.fullmatch(member.name) if member.isfile() else None
                    if matched is None or matched[1].rpartition("/")[2].startswith("._"):
                        continue  # folders, hidden files, files of other operating systems
                    key, ending = matched[1], matched[2].lower()
                    if ending in samples.setdefault(key, {}):
                        raise DataError(f"the sample {key} of {path} has two files .{ending}; make keys unique")
                    samples[key][ending] = member.offset_data, member.size
                stream.seek(shard.offset)
                whole = stream.read(512) == bytes(512)
        except tarfile.TarError as error:
            raise DataError(_damaged(path, key, str(error))) from None
        if not whole:  # tarfile takes a damaged header for the end of the file
            raise DataError(_damaged(path, key, "it has no end mark"))
        return _table(path, stream, samples)


def _damaged(path: Path, key: str | None, reason: str) -> str:
    where = "at its beginning" if key is None else f"after the sample {key}"
    return f"the shard {path} is cut off or damaged {where} ({reason}); copy or write it again"


def _table(path: Path, stream: Any, samples: dict[str, dict[str, tuple[int, int]]]) -> ShardIndex:
    rows = []
    for key, parts in samples.items():
        name = f"the sample {key} of {path}"
        images = [ending for ending in IMAGES if ending in parts]
        if len(images) != 1:
            found = " and ".join(f".{ending}" for ending in (images or parts))
            raise DataError(f"{name} has {found}; expected one image (.{' .'.join(IMAGES)}) beside its label")
        rows.append((key.encode(), *parts[images[0]], _label(stream, parts, name)))
    keys, offsets, sizes, labels = zip(*rows, strict=True) if rows else ((), (), (), ())
    numbers = (np.array(column, dtype=np.int64) for column in (offsets, sizes, labels))
    return ShardIndex(path, np.array(keys, dtype=np.bytes_), *numbers)


def _label(stream: Any, parts: dict[str, tuple[int, int]], name: str) -> int:
    """Return the number in .cls, or under `label` in .json."""
    expected = "expected a whole number of at least 0 in .cls, or as label in .json"
    ending = next((ending for ending in ("cls", "json") if ending in parts), None)
    if ending is None:
        raise DataError(f"{name} has no label, only {' '.join(f'.{name}' for name in parts)}; {expected}")
    offset, size = parts[ending]
    stream.seek(offset)
    text = stream.read(size).decode("utf-8", "replace").strip()
    value: Any = text
    if ending == "json":
        try:
            value = json.loads(text)["label"]
        except (ValueError, KeyError, TypeError):
            raise DataError(f"{name} has no label in its .json, which is {text[:60]!r}; {expected}") from None
    if isinstance(value, str) and value.isascii() and value.isdigit():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**31:
        raise DataError(f"{name} has the label {str(value)[:60]!r} in its .{ending}; {expected}")
    return value
