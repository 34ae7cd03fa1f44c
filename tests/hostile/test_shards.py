"""Shards, their indices and arrays that lie: refused in one line, without much memory or time."""

import io
import os
import re
import struct
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from madao.data import DATASETS, Dataset, DatasetRequest
from madao.data.shard_index import ShardIndex, index_shard, parse_index
from madao.errors import DataError
from tests.helpers.limits import memory_limit, open_folder, time_limit, without_rights
from tests.helpers.shards import write_shard

PIXEL = b"P6 1 1 255\n\0\0\0"


def opened(root: Path, name: str = "webdataset") -> Dataset:
    with time_limit():
        return DATASETS[name](DatasetRequest(root, side=8))


def refused(root: Path, message: str, name: str = "webdataset") -> None:
    with pytest.raises(DataError, match=message) as caught:
        opened(root, name)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 2_000


def samples(labels: list[object], ending: str = "cls") -> dict[str, bytes | str]:
    return {
        name: content
        for number, label in enumerate(labels)
        for name, content in ((f"{number:03}.ppm", PIXEL), (f"{number:03}.{ending}", str(label)))
    }


@pytest.mark.parametrize("label", [6, 1_700_000_000, 2**31 - 1])
def test_labels_are_bounded_by_the_number_of_images(tmp_path: Path, label: int) -> None:
    write_shard(tmp_path / "train-0.tar", samples([0, 1, 2, 3, 4, 5]))
    assert opened(tmp_path).classes == tuple("012345")
    write_shard(tmp_path / "train-0.tar", samples([0, 1, 2, 3, 4, label]))
    with memory_limit(2**30):
        refused(tmp_path, f"the sample 005 of .* has the label {label}, .* but only 6 images")
    write_shard(tmp_path / "train-0.tar", samples([0, 1, 2]))
    write_shard(tmp_path / "val-0.tar", samples([0, label]))
    refused(tmp_path, f"the sample 001 of .*val-0.* has the label {label}, but train has 3 classes")


@pytest.mark.parametrize("label", [-1, 0.5, "1.0", "nan", "1e3", 2**31, 2**63, "9" * 5_000, "\x1b[2J", "", "true"])
@pytest.mark.parametrize("ending", ["cls", "json"])
def test_labels_that_are_no_class_are_refused(tmp_path: Path, label: object, ending: str) -> None:
    text = f'{{"label": {label}}}' if ending == "json" else label
    write_shard(tmp_path / "train-0.tar", samples([0, text], ending) | samples([0]))
    refused(tmp_path, "the sample 00. of .* has (the|no) label .*expected a whole number of at least 0")


@pytest.mark.parametrize("text", ["[" * 100_000, '{"label":' * 100_000, "{", '{"label": [1]}', "\xff", " " * 2_000_000])
def test_json_that_is_none_is_refused(tmp_path: Path, text: str) -> None:
    write_shard(tmp_path / "train-0.tar", samples([text], "json"))
    refused(tmp_path, "the sample 000 of .*expected a whole number")


def test_pipes_in_the_place_of_shards_and_indices_do_not_hang(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "train-0.tar")
    refused(tmp_path, r"cannot read the shard .*train-0\.tar \(no regular file\)")
    (tmp_path / "train-0.tar").unlink()
    write_shard(tmp_path / "train-0.tar", samples([0, 1]))
    os.mkfifo(tmp_path / ".train-0.tar.index.npz")
    assert len(opened(tmp_path).train) == 2
    (tmp_path / "array").mkdir()
    os.mkfifo(tmp_path / "array" / "x.npz")
    refused(tmp_path / "array", "no regular file", "npz")


def test_a_folder_of_shards_that_cannot_be_read_is_named() -> None:
    with open_folder() as folder:
        write_shard(folder / "train-0.tar", samples([0, 1]))
        write_shard(folder / "val" / "0.tar", samples([0, 1]))
        (folder / "val").chmod(0)
        with without_rights():
            refused(folder, f"cannot read {folder / 'val'}")
        (folder / "val").chmod(0o755)


def header(name: bytes, size: bytes, kind: bytes = b"0", extra: bytes = b"") -> bytes:
    """A header of a tar file whose size can be anything."""
    block = bytearray(512)
    block[: len(name)] = name
    block[100:108], block[124:136], block[136:148] = b"0000644\0", size.ljust(12, b"\0"), b"00000000000\0"
    block[156:157], block[257:265] = kind, b"ustar\x0000"
    block[345 : 345 + len(extra)] = extra
    block[148:156] = b" " * 8
    block[148:156] = b"%06o\0 " % sum(block)
    return bytes(block)


def octal(size: int) -> bytes:
    return b"%011o\0" % size


def binary(size: int) -> bytes:
    return b"\x80" + size.to_bytes(11, "big") if size >= 0 else b"\xff" + (256**11 + size).to_bytes(11, "big")


def pax(**fields: str) -> bytes:
    lines = b"".join(b"%d %s\n" % (len(line) + 4, line) for line in (f"{k}={v}".encode() for k, v in fields.items()))
    return header(b"pax", octal(len(lines)), b"x") + lines.ljust(512, b"\0")


END = bytes(1024)
IMAGE = header(b"k.ppm", octal(len(PIXEL))) + PIXEL.ljust(512, b"\0")
LABEL = header(b"k.cls", octal(1)) + b"0".ljust(512, b"\0")
TARS = {
    "negative size": header(b"k.ppm", binary(-512)) + END,
    "negative size of another file": header(b"k", binary(-512)) + END,
    "negative size that leads to itself": IMAGE + LABEL + header(b"k", binary(-512)) + END,
    "negative size by pax": pax(size="-1024") + header(b"k", octal(0)) + END,
    "size of 2^62": header(b"k.ppm", binary(2**62)) + END,
    "size of 2^80": header(b"k.ppm", binary(2**80)) + END,
    "size of 10^30 by pax": pax(size="9" * 30) + header(b"k.ppm", octal(0)) + END,
    "size that is no number": pax(size="nan") + header(b"k.ppm", octal(0)) + END,
    "longer than the file": header(b"k.ppm", octal(4096)) + LABEL + END,
    "name of 2^33 bytes": header(b"k", octal(2**33 - 1), b"L") + END,
    "fields of 2^33 bytes": header(b"k", octal(2**33 - 1), b"x") + END,
    "names of names": header(b"k", octal(512), b"L") * 3_000 + END,
    "sparse": pax(**{"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.realsize": "9" * 17})
    + header(b"k.ppm", octal(512))
    + b"1\n0\n1\n".ljust(512, b"\0")
    + END,
    "old sparse": header(b"k.ppm", octal(0), b"S") + LABEL + END,
    "key of 5,000 letters": pax(path="k" * 5_000 + ".ppm") + IMAGE + END,
    "label of 10^9 bytes": IMAGE + header(b"k.cls", octal(10**9)) + END,
    "label only": LABEL + END,
    "no label": IMAGE + END,
    "no end": IMAGE + LABEL,
    "a link": header(b"k.ppm", octal(0), b"2") + LABEL + END,
    "noise": np.random.default_rng(0).bytes(10_240),
    "nothing": b"",
}


@pytest.mark.parametrize("content", TARS.values(), ids=TARS.keys())
def test_tar_files_that_lie_are_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "train-0.tar").write_bytes(content)
    with memory_limit(2**30):
        refused(tmp_path, "train-0.tar|no sample")


@pytest.mark.parametrize("name", [os.fsdecode(b"\xff"), "\x1b[2Jk", "a\nb", "\u202ek", "../../k", "/etc/k"])
def test_keys_of_any_letters_are_read(tmp_path: Path, name: str) -> None:
    shard = write_shard(
        tmp_path / "train-0.tar", {f"{name}.ppm": PIXEL, f"{name}.cls": "0", "b.ppm": b"x", "b.cls": "1"}
    )
    train = opened(tmp_path).train
    assert train.load([0])[1] == [0]
    assert all(index_shard(shard).name(row).isprintable() for row in range(2))  # the second time from the index


@pytest.fixture
def index(tmp_path: Path) -> ShardIndex:
    return index_shard(write_shard(tmp_path / "train-0.tar", samples([0, 1, 2, 3])))


def stored(index: ShardIndex, **changed: object) -> tuple[bytes, np.ndarray[Any, Any]]:
    """A stored index with other columns, and its stamp."""
    stat = index.path.stat()
    stamp = np.array([1, stat.st_size, stat.st_mtime_ns], dtype=np.int64)
    arrays: dict[str, Any] = {name: getattr(index, name) for name in ("keys", "offsets", "sizes", "labels")}
    file = io.BytesIO()
    np.savez(file, **{"stamp": stamp, **arrays, **changed})
    return file.getvalue(), stamp


def lies(columns: Mapping[str, np.ndarray[Any, Any]]) -> list[dict[str, Any]]:
    """Columns that no shard of four samples has."""
    four = np.ones(4, dtype=np.int64)
    numbers = [-four, four * 2**62, four * -(2**63), four[:3], four.astype(float), four.astype(">i8"), four[:, None]]
    numbers += [four.astype(np.int32), four.astype("M8[s]"), np.array(0), np.empty(0, np.int64), four.astype("S8")]
    keys = [columns["keys"][:3], columns["keys"].astype("U"), four, columns["keys"].astype("S1025"), four * 1.0]
    cases = [{name: wrong} for name in ("offsets", "sizes", "labels") for wrong in numbers if name != "labels"]
    cases += [{"labels": wrong} for wrong in numbers[:-1] if not np.array_equal(wrong, four)]
    cases += [{"keys": wrong} for wrong in keys]
    cases += [{"offsets": four * 10**6}, {"sizes": four * 10**6}, {"labels": four * 2**31}, {"stamp": four}]
    return cases


def test_an_index_that_lies_is_built_again(index: ShardIndex) -> None:
    columns = {name: getattr(index, name) for name in ("keys", "offsets", "sizes", "labels")}
    place = index.path.with_name(".train-0.tar.index.npz")
    data, stamp = stored(index)
    true = parse_index(io.BytesIO(data), stamp, index.path)
    assert true is not None
    assert true.offsets.tolist() == index.offsets.tolist()
    cases = lies(columns)
    for case in cases:
        data, stamp = stored(index, **case)
        assert parse_index(io.BytesIO(data), stamp, index.path) is None, case
    place.write_bytes(data)
    assert index_shard(index.path).labels.tolist() == [0, 1, 2, 3]
    assert len(cases) > 40


def npy(shape: tuple[int, ...], kind: str, content: bytes = b"") -> bytes:
    text = f"{{'descr': '{kind}', 'fortran_order': False, 'shape': {shape}, }}".encode().ljust(117) + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text + content


def archive(members: Mapping[str, bytes], compression: int = zipfile.ZIP_STORED) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", compression) as made:
        for name, content in members.items():
            made.writestr(f"{name}.npy", content)
    return file.getvalue()


NAMES = ("keys", "offsets", "sizes", "labels")


@pytest.mark.parametrize("count", [10**6, 10**9, 10**12, 2**63, -1])
@pytest.mark.parametrize("compression", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_an_index_of_many_entries_takes_no_memory(index: ShardIndex, count: int, compression: int) -> None:
    _, stamp = stored(index)
    bomb = bytes(2**22 if compression else 100)
    columns = {name: npy((count,), "|S8" if name == "keys" else "<i8", bomb) for name in NAMES}
    data = archive({"stamp": npy((3,), "<i8", stamp.tobytes()), **columns}, compression)
    with memory_limit(2**30), time_limit():
        assert parse_index(io.BytesIO(data), stamp, index.path) is None


def attack(data: bytes, trials: int, read: Callable[[bytes], object]) -> int:
    """Read damaged versions of a file; return how many could be read."""
    rng = np.random.default_rng(0)
    read_ones = 0
    for trial in range(trials):
        damaged = bytearray(data)
        for place in rng.integers(0, len(data), 1 + trial % 4):
            damaged[place] ^= 1 << rng.integers(0, 8)
        if trial % 5 == 0:
            damaged = damaged[: rng.integers(0, len(data))]
        with time_limit():
            read_ones += read(bytes(damaged)) is not None
    return read_ones


def attack_index(index: ShardIndex, trials: int) -> int:
    data, stamp = stored(index)
    size = int(stamp[1])

    def read(damaged: bytes) -> ShardIndex | None:
        found = parse_index(io.BytesIO(damaged), stamp, index.path)
        if found is not None:
            assert (found.offsets >= 0).all()
            assert (found.offsets + found.sizes <= size).all()
            assert all(found.name(row).isprintable() for row in range(len(found.labels)))
        return found

    return attack(data, trials, read)


def attack_shard(path: Path, trials: int) -> int:
    return attack(path.read_bytes(), trials, lambda damaged: read_file(path, damaged, "webdataset"))


def attack_arrays(path: Path, trials: int) -> int:
    images, labels = np.zeros((6, 8, 8), np.uint8), np.arange(6) % 2
    np.savez_compressed(path, x_train=images, y_train=labels, x_test=images, y_test=labels)
    return attack(path.read_bytes(), trials, lambda damaged: read_file(path, damaged, "npz"))


def read_file(path: Path, content: bytes, name: str) -> Dataset | None:
    path.write_bytes(content)
    try:
        return opened(path, name)
    except DataError:
        return None


MANY = pytest.param(5_000, id="many", marks=pytest.mark.slow)


@pytest.mark.parametrize("trials", [150, MANY])
def test_damaged_indices_shards_and_arrays_are_read_or_refused(index: ShardIndex, tmp_path: Path, trials: int) -> None:
    read = {
        "indices": attack_index(index, trials),
        "shards": attack_shard(index.path, trials),
        "arrays": attack_arrays(tmp_path / "x.npz", trials),
    }
    for name, count in read.items():
        print(f"{trials} damaged {name}: {count} read, {trials - count} refused, no other error")
        assert count < trials


ZEROS = bytes(10)
SIX = npy((6,), "<i8", np.arange(6).tobytes())
ARCHIVES = {
    "10^12 images": {"x_train": npy((10**12, 8, 8), "|u1", ZEROS), "y_train": npy((10**12,), "<i8", ZEROS)},
    "a negative number": {"x_train": npy((-1, 8, 8), "|u1", ZEROS), "y_train": npy((-1,), "<i8", ZEROS)},
    "too short": {"x_train": npy((6, 8, 8), "|u1", ZEROS), "y_train": SIX},
    "objects": {"x_train": npy((1,), "|O", ZEROS), "y_train": npy((1,), "|O", ZEROS)},
    "code": {"x_train": b"\x93NUMPY\x01\x00\x76\x00" + b"__import__('os').abort()".ljust(117) + b"\n", "y_train": b""},
    "no arrays": {"x_train": b"text", "y_train": b"text"},
    "dates": {"x_train": npy((6, 1, 1), "<M8[s]", bytes(48)), "y_train": SIX},
    "records": {"x_train": npy((6, 1, 1), "|V4", bytes(24)), "y_train": SIX},
    "names that are commands": {"\x1b[2J": npy((1,), "|u1", ZEROS)},
    "names without end": {"x" * 60_000: npy((1,), "|u1", ZEROS)},
}


@pytest.mark.parametrize("members", ARCHIVES.values(), ids=ARCHIVES.keys())
def test_arrays_that_lie_are_refused(tmp_path: Path, members: Mapping[str, bytes]) -> None:
    (tmp_path / "x.npz").write_bytes(archive(members))
    with memory_limit(2**30):
        refused(tmp_path / "x.npz", re.escape(str(tmp_path / "x.npz")), "npz")


@pytest.mark.parametrize("place", ["checksum", "deflated", "locked", "method"])
def test_a_damaged_member_of_an_archive_is_refused(tmp_path: Path, place: str) -> None:
    data = bytearray(archive({"x_train": npy((6, 8, 8), "|u1", bytes(384)), "y_train": SIX}, 8))
    entry = data.index(b"PK\1\2")
    if place == "checksum":
        data[entry + 16] ^= 1
    elif place == "deflated":
        data[60:70] = b"\xff" * 10
    elif place == "locked":
        data[entry + 8] |= 1
        data[6] |= 1
    else:
        data[entry + 10] = 99
    (tmp_path / "x.npz").write_bytes(data)
    refused(tmp_path / "x.npz", "as arrays of numbers", "npz")


@pytest.mark.parametrize("split", ["train", "val", "test"])
def test_an_empty_split_is_refused_before_training(tmp_path: Path, split: str) -> None:
    arrays: dict[str, Any] = {}
    for name in ("train", "val", "test"):
        count = 0 if name == split else 6
        arrays |= {f"x_{name}": np.zeros((count, 8, 8), np.uint8), f"y_{name}": np.arange(count) % 2}
    np.savez(tmp_path / "x.npz", **arrays)
    refused(tmp_path / "x.npz", "two or more are needed" if split == "train" else f"{split} of .*there are none", "npz")
