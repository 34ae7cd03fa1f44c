"""Indices of tar files: where each sample is. They are built once and stored in small files."""

import dataclasses
import hashlib
import io
import json
import os
import re
import tarfile
import zipfile
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from madao.errors import DataError
from madao.files import open_regular, replacing
from madao.text import printable

IMAGES = ("jpg", "jpeg", "png", "ppm", "webp", "bmp", "gif", "tif", "tiff")
_VERSION = 1
_COLUMNS = ("keys", "offsets", "sizes", "labels")
_BLOCK = 512
"""Size of a header in a tar file in bytes."""
_LONGEST_KEY = 1024
_LONGEST_LABEL = 2**20
"""Largest size of a .cls or .json file in bytes."""
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
        return _name(self.keys[row].decode("utf-8", "replace"), self.path)


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
        with open_regular(place) as file:
            return parse_index(file, stamp, path)
    except OSError:
        return None


def parse_index(file: BinaryIO, stamp: Array, path: Path) -> ShardIndex | None:
    """Return a stored index, or None if it has to be built again: it is damaged, of another shard, or cannot be true.

    The memory that it takes is limited by the size of the shard, whatever the file says.

    Args:
        file: The stored index.
        stamp: Version of the format, and size and time of the shard, as they must be in the index.
        path: Path of the shard. It is not read.
    """
    size = int(stamp[1])
    if file.seek(0, io.SEEK_END) > _largest_index(size):
        return None
    try:
        with zipfile.ZipFile(file) as archive:  # compressed arrays, which are not stored here, can be of any size
            if any(member.compress_type != zipfile.ZIP_STORED for member in archive.infolist()):
                return None
        file.seek(0)
        with np.load(file, allow_pickle=False) as arrays:
            if not np.array_equal(arrays["stamp"], stamp):
                return None
            index = ShardIndex(path, *(arrays[name] for name in _COLUMNS))
    except Exception:  # zipfile and numpy raise errors of many types for damaged files
        return None
    return index if _fits(index, size) else None


def _largest_index(size: int) -> int:
    """Return the largest size of the index of a shard in bytes: each sample has a header or more in the shard."""
    return size // _BLOCK * (_LONGEST_KEY + 3 * 8) + 2**16


def _fits(index: ShardIndex, size: int) -> bool:
    """Return whether an index is one of `_table`, of a shard of that size."""
    columns = (index.offsets, index.sizes, index.labels)
    if index.keys.dtype.kind != "S" or index.keys.ndim != 1 or index.keys.itemsize > _LONGEST_KEY:
        return False
    if any(column.dtype != np.int64 or column.shape != index.keys.shape for column in columns):
        return False
    inside = (index.offsets >= 0) & (index.sizes >= 0) & (index.sizes <= size - index.offsets)
    return bool((inside & (index.offsets <= size) & (index.labels >= 0) & (index.labels < 2**31)).all())


def _store(place: Path, stamp: Array, index: ShardIndex) -> bool:
    if place.exists() and not place.is_file():  # a pipe would wait for a reader
        return False
    arrays = {name: getattr(index, name) for name in _COLUMNS}
    try:
        with replacing(place, concurrent=True) as file:
            np.savez(file, stamp=stamp, **arrays)
    except OSError:
        return False
    return True


def _read(path: Path) -> ShardIndex:
    samples: dict[str, dict[str, tuple[int, int]]] = {}
    key, position = None, 0
    with open_regular(path) as stream:
        total = os.fstat(stream.fileno()).st_size
        if stream.read(2) == b"\x1f\x8b":
            raise DataError(f"the shard {path} is compressed, so images cannot be found by their offset; gunzip it")
        stream.seek(0)
        try:
            with tarfile.open(fileobj=stream, mode="r:") as shard:
                for member in shard:
                    if member.offset < position:  # a negative size: some versions of tarfile would never end
                        raise tarfile.ReadError("it leads back to its beginning")
                    position = member.offset + _BLOCK
                    matched = _NAME.fullmatch(member.name) if member.isfile() else None
                    if matched is None or matched[1].rpartition("/")[2].startswith("._"):
                        continue  # folders, hidden files, files of other operating systems
                    key, ending = matched[1], matched[2].lower()
                    if member.issparse() or not 0 <= member.size <= total - member.offset_data:
                        raise tarfile.ReadError(f"the file .{printable(ending)} is not there as a whole")
                    if ending in samples.setdefault(key, {}):
                        raise DataError(f"{_name(key, path)} has two files .{printable(ending)}; make keys unique")
                    samples[key][ending] = member.offset_data, member.size
                stream.seek(shard.offset)
                whole = stream.read(512) == bytes(512)
        except (DataError, OSError):
            raise
        except Exception as error:  # tarfile raises errors of many types for damaged headers
            raise DataError(_damaged(path, key, printable(error, limit=200) or type(error).__name__)) from None
        if not whole:  # tarfile takes a damaged header for the end of the file
            raise DataError(_damaged(path, key, "it has no end mark"))
        return _table(path, stream, samples)


def _damaged(path: Path, key: str | None, reason: str) -> str:
    where = "at its beginning" if key is None else f"after the sample {printable(key)}"
    return f"the shard {path} is cut off or damaged {where} ({reason}); copy or write it again"


def _name(key: str, path: Path) -> str:
    return f"the sample {printable(key, limit=200)} of {path}"


def _table(path: Path, stream: Any, samples: dict[str, dict[str, tuple[int, int]]]) -> ShardIndex:
    rows = []
    for key, parts in samples.items():
        name, encoded = _name(key, path), key.encode("utf-8", "surrogateescape")
        if len(encoded) > _LONGEST_KEY:
            raise DataError(
                f"{name} has a key of {len(encoded):,} bytes, at most {_LONGEST_KEY:,} are read; shorten it"
            )
        images = [ending for ending in IMAGES if ending in parts]
        if len(images) != 1:
            found = " and ".join(f".{printable(ending)}" for ending in (images or parts))
            raise DataError(f"{name} has {found}; expected one image (.{' .'.join(IMAGES)}) beside its label")
        rows.append((encoded, *parts[images[0]], _label(stream, parts, name)))
    keys, offsets, sizes, labels = zip(*rows, strict=True) if rows else ((), (), (), ())
    numbers = (np.array(column, dtype=np.int64) for column in (offsets, sizes, labels))
    return ShardIndex(path, np.array(keys, dtype=np.bytes_), *numbers)


def _label(stream: Any, parts: dict[str, tuple[int, int]], name: str) -> int:
    """Return the number in .cls, or under `label` in .json."""
    expected = "expected a whole number of at least 0 in .cls, or as label in .json"
    ending = next((ending for ending in ("cls", "json") if ending in parts), None)
    if ending is None:
        endings = " ".join(f".{printable(name)}" for name in parts)
        raise DataError(f"{name} has no label, only {endings}; {expected}")
    offset, size = parts[ending]
    if size > _LONGEST_LABEL:
        raise DataError(f"{name} has {size:,} bytes in its .{ending}; {expected}")
    stream.seek(offset)
    text = stream.read(size).decode("utf-8", "replace").strip()
    value: Any = text
    if ending == "json":
        try:
            value = json.loads(text)["label"]
        except (ValueError, KeyError, TypeError, RecursionError):
            raise DataError(f"{name} has no label in its .json, which is {text[:60]!r}; {expected}") from None
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 20:
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**31:
        raise DataError(f"{name} has the label {str(value)[:60]!r} in its .{ending}; {expected}")
    return value
