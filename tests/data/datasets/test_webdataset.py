"""Shards: the same samples as the files they were made of, and mistakes by name."""

import itertools
import json
import os
import pickle
import tarfile
from pathlib import Path

import pytest
import torch

from madao.data import DATASETS, Batches, DatasetRequest, ImageFiles, Shards, shard_index, shards, stratified
from madao.data.shard_index import index_shard
from madao.errors import DataError
from tests.helpers.shards import write_shard

CPU = torch.device("cpu")


def members(files: ImageFiles, chosen: range) -> dict[str, bytes | str]:
    return {
        name: content
        for i in chosen
        for name, content in ((f"{i:05}.cls", f"{int(files.labels[i])}\n"), (f"{i:05}.png", files.read(i)))
    }


@pytest.fixture
def root(tmp_path: Path, files: ImageFiles) -> Path:
    """The twenty-three files as three shards, the last one empty but for its end."""
    root = tmp_path / "shards"
    write_shard(root / "train-000.tar", members(files, range(10)))
    write_shard(root / "train-001.tar", members(files, range(10, 23)))
    write_shard(root / "train-002.tar", {})
    return root


def load(root: Path, side: int = 8) -> Shards:
    found = DATASETS["webdataset"](DatasetRequest(root, side=side)).train
    assert isinstance(found, Shards)
    return found


def test_samples_are_those_of_the_files(root: Path, files: ImageFiles) -> None:
    found = load(root)
    assert len(found) == 23
    assert torch.equal(found.labels, files.labels)
    assert torch.equal(found.load(range(23))[0], files.load(range(23))[0])
    assert found.name(11) == f"the sample 00011 of {root / 'train-001.tar'}"


@pytest.mark.parametrize("workers", [0, 2])
def test_order_resume_parts_and_splits_are_those_of_files(root: Path, files: ImageFiles, workers: int) -> None:
    found = load(root)
    _, aside = stratified(found.labels, 0.3, seed=1)
    part = torch.arange(1, len(aside))
    parts = found.subset(aside).subset(part), files.subset(aside).subset(part)
    for images, reference in ((found, files), (found.subset(aside), files.subset(aside)), parts):
        for start, (rank, world) in itertools.product((0, 2), ((0, 1), (1, 2))):
            mine, wanted = (
                Batches(part, 3, CPU, seed=5, workers=count, rank=rank, world=world).epoch(2, start)
                for part, count in ((images, workers), (reference, 0))
            )
            for one, other in zip(mine, wanted, strict=True):
                assert torch.equal(one[0], other[0])
                assert torch.equal(one[1], other[1])


def test_a_worker_reads_by_itself(root: Path, files: ImageFiles) -> None:
    """A file that a parent opened shares its position with its children."""
    found = load(root)
    found.load([0])  # opened here, before workers are forked
    stream = found._stream(root / "train-000.tar")
    position = stream.tell()
    batches = Batches(found, 2, CPU, shuffle=False, workers=2)
    seen = torch.cat([images[:, 0, 0, 0] for images, _ in batches.epoch(0)])
    assert seen.tolist() == [10 * i for i in range(22)]
    assert stream.tell() == position
    again = pickle.loads(pickle.dumps(found))  # as where processes are spawned
    assert torch.equal(again.load([12])[0], files.load([12])[0])


def test_only_so_many_shards_are_open(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shards, "_OPEN", 1)
    found = load(root)
    assert found.load([0, 22, 1, 21])[0][:, 0, 0, 0].tolist() == [0, 220, 10, 210]
    assert [path.name for path in found._handles] == ["train-001.tar"]


def indices(folder: Path) -> list[tuple[str, int, int]]:
    """Name, inode and time of each stored index, which change if it is written again."""
    paths = sorted(folder.rglob("*.npz"))
    return [(path.name, path.stat().st_ino, path.stat().st_mtime_ns) for path in paths]


def test_the_index_is_kept_until_the_shard_changes(root: Path, files: ImageFiles) -> None:
    load(root)
    first = indices(root)
    assert [name for name, *_ in first] == [f".train-00{i}.tar.index.npz" for i in range(3)]
    assert torch.equal(load(root).load([3, 13])[0], files.load([3, 13])[0])
    assert indices(root) == first
    shard = root / "train-001.tar"
    os.utime(shard, ns=(1, 1))
    load(root)
    second = indices(root)
    assert [a == b for a, b in zip(first, second, strict=True)] == [True, False, True]
    (root / ".train-000.tar.index.npz").write_bytes(b"half of an index")
    write_shard(shard, members(files, range(10, 12)))
    assert len(load(root)) == 12
    assert [a == b for a, b in zip(second, indices(root), strict=True)] == [False, False, True]


def test_beside_shards_that_cannot_be_written_to_the_cache_keeps_it(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    places = shard_index._places
    monkeypatch.setattr(shard_index, "_places", lambda path: (Path("/proc/none/index.npz"), places(path)[1]))
    load(root)
    stored = indices(tmp_path / "cache" / "madao" / "shards")
    assert len(stored) == 3
    assert len(load(root)) == 23
    assert indices(tmp_path / "cache") == stored


def test_names_of_splits_and_classes(tmp_path: Path, files: ImageFiles) -> None:
    root = tmp_path / "shards"
    write_shard(root / "data-training-000.tar", members(files, range(6)))
    write_shard(root / "data-training-001.tar", members(files, range(6, 9)))
    write_shard(root / "more" / "validation_000.tar", members(files, range(9, 15)))
    write_shard(root / "testing" / "0.tar", members(files, range(15, 21)))
    (root / "classes.txt").write_text("cat\r\ndog\na third\n\n")
    found = DATASETS["webdataset"](DatasetRequest(root, side=8))
    assert found.classes == ("cat", "dog", "a third")
    assert (len(found.train), found.flip) == (9, True)
    assert found.validation is not None
    assert found.test is not None
    assert found.validation.load([0])[0][0, 0, 0, 0] == 90
    assert found.test.load([0])[0][0, 0, 0, 0] == 150
    for text, count in (
        ("data-training-{000..001}.tar", 9),
        ("data-training-{001,000}.tar", 9),
        ("data-training-000.tar", 6),
    ):
        alone = DATASETS["webdataset"](DatasetRequest(root / text, side=8))
        assert (len(alone.train), alone.validation, alone.classes) == (count, None, found.classes)
    for path in (root / "more" / "validation_000.tar", root / "testing" / "0.tar"):
        path.unlink()
    for number in range(2):
        (root / f"data-training-00{number}.tar").rename(root / f"{number}.tar")
    assert len(load(root)) == 9  # shards that name no split are to learn from


def test_shards_of_several_names_are_not_mixed(tmp_path: Path, files: ImageFiles) -> None:
    for name in ("learn-0", "learn-1", "holdout-0", "holdout-10"):
        write_shard(tmp_path / f"{name}.tar", members(files, range(6)))
    with pytest.raises(DataError, match=r"several names, holdout-0\.tar and learn-0\.tar"):
        load(tmp_path)
    for name in ("holdout-0", "holdout-10"):
        (tmp_path / f"{name}.tar").unlink()
    assert len(load(tmp_path)) == 12


def test_json_labels_folders_and_what_else_is_in_a_sample(tmp_path: Path, files: ImageFiles) -> None:
    image = files.read(7)
    shard: dict[str, bytes | str] = {
        "a/x.JPG.txt": "no image",
        "a/x.json": json.dumps({"label": 1, "caption": "x"}),
        "a/x.png": image,
    }
    shard |= {"b/x.cls": "0", "b/x.webp": image, "b/x.seg.png": image, "._x.png": "junk", "README": "none of ours"}
    index = index_shard(write_shard(tmp_path / "train.tar", shard))
    assert index.keys.tolist() == [b"a/x", b"b/x"]
    assert index.labels.tolist() == [1, 0]
    assert all(column.dtype != object for column in (index.keys, index.labels, index.offsets, index.sizes))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"k.png": b"x"}, "has no label, only .png; expected a whole number of at least 0 in .cls"),
        ({"k.png": b"x", "k.cls": "cat"}, "has the label 'cat' in its .cls"),
        ({"k.png": b"x", "k.cls": "-1"}, "has the label '-1'"),
        ({"k.png": b"x", "k.json": '{"label": 1.5}'}, "has the label '1.5' in its .json"),
        ({"k.png": b"x", "k.json": '{"class": 1}'}, "has no label in its .json, which is '{\"class\": 1}'"),
        ({"k.cls": "0"}, "has .cls; expected one image (.jpg .jpeg .png"),
        ({"k.cls": "0", "k.png": b"x", "k.jpg": b"x"}, "has .jpg and .png"),
    ],
)
def test_a_sample_that_is_none_is_named(tmp_path: Path, wrong: dict[str, bytes | str], message: str) -> None:
    path = write_shard(tmp_path / "train-7.tar", wrong)
    with pytest.raises(DataError) as caught:
        load(tmp_path)
    assert f"the sample k of {path} {message}" in str(caught.value)
    assert not list(tmp_path.glob(".*"))


def test_two_samples_of_one_key(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "a.tar", "w") as shard:
        for _ in range(2):
            shard.addfile(tarfile.TarInfo("k.cls"))
    with pytest.raises(DataError, match=r"the sample k of .*a\.tar has two files \.cls"):
        load(tmp_path)


def test_shards_that_are_cut_off_or_damaged(root: Path) -> None:
    shard = root / "train-000.tar"
    whole = shard.read_bytes()
    index = index_shard(shard)
    end = int(index.offsets[9]) + 512  # of the last image, less than 512 bytes
    header = int(index.offsets[4]) - 512
    cases = {
        whole[: int(index.offsets[3]) + 20]: "after the sample 00003",  # within an image
        whole[: header + 100]: "after the sample 00004",  # within a header
        whole[:end]: r"after the sample 00009 \(it has no end mark\)",  # between samples
        whole[:header] + b"\xff" * 512 + whole[header + 512 :]: "after the sample 00004",  # a header of noise
        b"no tar file at all" * 100: "at its beginning",
        b"": "at its beginning",
    }
    for content, where in cases.items():
        shard.write_bytes(content)
        with pytest.raises(DataError, match=rf"000\.tar is cut off or damaged {where}.*; copy or write it again"):
            load(root)
    shard.write_bytes(b"\x1f\x8b" + whole)
    with pytest.raises(DataError, match=r"train-000\.tar is compressed, .*; gunzip it"):
        load(root)


def test_an_image_that_cannot_be_read_is_named(root: Path, files: ImageFiles) -> None:
    content = members(files, range(5)) | {"00002.png": b"noise"}
    path = write_shard(root / "train-000.tar", content)
    found = load(root)
    with pytest.raises(DataError, match=f"the sample 00002 of {path}"):
        found.load([1, 2])
    skipping = Shards(found.indices, 8, "skip").subset(torch.tensor([2, 3]))
    assert skipping.load([0, 1])[1] == [1]
    path.unlink()
    gone = Shards(found.indices, 8)
    with pytest.raises(DataError, match=r"the sample 00001 of .*No such file"):
        gone.load([1])


def test_layouts_that_are_none(tmp_path: Path, files: ImageFiles) -> None:
    def refused(root: Path, message: str) -> None:
        with pytest.raises(DataError, match=message):
            DATASETS["webdataset"](DatasetRequest(root, side=8))

    refused(tmp_path / "none.tar", r"there is no shard .*none\.tar; expected <root>/train-000\.tar")
    refused(tmp_path / "a-{00..11}.tar", r"there is no shard .*a-00\.tar \(nor 11 more\)")
    refused(tmp_path / "t-{5..3}.tar", r"\{5\.\.3\} in .*t-\{5\.\.3\}\.tar counts down, .*; write \{3\.\.5\}; expected")
    refused(tmp_path, r"has no \.tar file; expected")
    write_shard(tmp_path / "val-0.tar", members(files, range(6)))
    refused(tmp_path, "has val but no train; expected")
    write_shard(tmp_path / "train-0.tar", {})
    refused(tmp_path, "the 1 shards of train .* have no sample")
    write_shard(tmp_path / "train-0.tar", members(files, range(2)))
    refused(tmp_path, r"the sample 00002 of .*val-0\.tar has the label 2, but train has 2 classes, the last one 1")
    (tmp_path / "classes.txt").write_text("cat\n")
    refused(tmp_path, "has one class, cat, two or more are needed")
    write_shard(tmp_path / "more.tar", members(files, range(2)))
    refused(tmp_path, r"the name of .*more\.tar has no train, val or test in it")
