"""Folders of images with links, pipes, strange names and no rights: every image counts once, or the folder is named."""

import csv
import json
import os
import socket
from pathlib import Path

import pytest

from madao.cli import main
from madao.config.train_config import DataConfig
from madao.data import DATASETS, Dataset, DatasetRequest, ImageFiles, Images
from madao.errors import DataError, UserError
from madao.training.splits import Splits, load_splits
from tests.helpers.image_files import write_image
from tests.helpers.limits import open_folder, time_limit, without_rights


def photos(root: Path, *classes: str, count: int = 12) -> Path:
    for shade, name in enumerate(classes or ("a", "b")):
        for number in range(count):
            write_image(root / name / f"{number}.jpg", 10 * number + shade)
    return root


def opened(root: Path, **settings: object) -> Dataset:
    with time_limit():
        return DATASETS["folder"](DatasetRequest(root, **settings))  # type: ignore[arg-type]


def loaded(root: Path, **settings: object) -> Splits:
    with time_limit():
        return load_splits(DataConfig(root=str(root), size=16, workers=0, **settings))  # type: ignore[arg-type]


def real(images: Images | None) -> list[str]:
    assert isinstance(images, ImageFiles)
    return [os.path.realpath(path) for path in images.paths]


@pytest.mark.parametrize(
    "links",
    [
        {"a/again": "../a"},
        {"a/again": "../a", "a/more": "../a"},
        {"a/again": "../a", "a/more": "../b", "b/more": "../a", "b/again": "../b"},
        {"a/up": "..", "b/up": ".."},
        {"a/here": ".", "b/itself": "itself"},
        {"a/13.jpg": "1.jpg", "b/13.jpg": "../a/1.jpg"},
        {f"a/{number}": "../a" for number in range(100)},
    ],
)
def test_each_image_counts_once_whatever_links_lead_to_it(tmp_path: Path, links: dict[str, str]) -> None:
    root = photos(tmp_path)
    for name, target in links.items():
        (root / name).symlink_to(target)
    dataset = opened(root)
    assert sorted(real(dataset.train)) == sorted(str(root / name / f"{i}.jpg") for name in "ab" for i in range(12))
    assert dataset.train.labels.bincount().tolist() == [12, 12]
    assert len(dataset.notes) == (links.keys() != {"b/itself"})
    splits = loaded(root)
    assert splits.validation is not None
    assert len(splits.train) + len(splits.validation) == 24


def test_an_image_outside_with_two_classes_is_refused(tmp_path: Path) -> None:
    write_image(tmp_path / "store" / "x.jpg", 0)
    root = photos(tmp_path / "photos")
    for name in "ab":
        (root / name / "x.jpg").symlink_to(tmp_path / "store" / "x.jpg")
    with pytest.raises(DataError, match=r"share 1 image: .*a/x\.jpg and .*b/x\.jpg are one file"):
        opened(root)


@pytest.mark.parametrize(("one", "other"), [("train", "val"), ("train", "test"), ("val", "test")])
def test_an_image_in_two_splits_is_named(tmp_path: Path, one: str, other: str) -> None:
    for split in ("train", "val", "test"):
        photos(tmp_path / split, count=2)
    (tmp_path / other / "a" / "link.jpg").symlink_to(tmp_path / one / "a" / "1.jpg")
    (note,) = opened(tmp_path).notes
    assert f"{one} and {other} share 1 image, such as {tmp_path / other / 'a' / 'link.jpg'}" in note


@pytest.mark.parametrize("on_error", ["stop", "skip"])
def test_a_pipe_between_images_does_not_hang(tmp_path: Path, on_error: str) -> None:
    root = photos(tmp_path)
    os.mkfifo(root / "a" / "x.jpg")
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(os.path.relpath(root / "b" / "x.png"))
        if on_error == "stop":
            with pytest.raises(UserError, match=r"x\.jpg as an image"):
                loaded(root)
        else:
            assert [Path(image.name).name for image in loaded(root, on_error="skip").skipped] == ["x.jpg", "x.png"]


def test_a_pipe_in_the_place_of_a_list_of_classes_does_not_hang(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "classes.txt")
    for name in ("images", "masks"):
        write_image(tmp_path / name / "1.png", 1)
    with time_limit(), pytest.raises(DataError):
        DATASETS["masks"](DatasetRequest(tmp_path, side=8))


def test_a_folder_that_cannot_be_read_is_named() -> None:
    with open_folder() as folder:
        root = photos(folder / "photos", count=3)
        closed = root / "a" / "closed"
        write_image(closed / "1.jpg", 0)
        closed.chmod(0)
        with without_rights():
            with pytest.raises(DataError, match=f"cannot read the folder {closed}.*data.on_error=skip"):
                opened(root)
            dataset = opened(root, on_error="skip")
            assert [image.name for image in dataset.skipped] == [str(closed)]
            assert len(dataset.train) == 6
            assert loaded(root, on_error="skip").skipped == dataset.skipped
        (root / "b").chmod(0)
        with without_rights(), pytest.raises(DataError, match=f"cannot read the folder {root / 'b'}"):
            opened(root, on_error="skip")  # a class without images is none
        root.chmod(0)
        with without_rights():
            for place in (root, root / "a"):
                with pytest.raises(UserError, match="cannot read"):
                    load_splits(DataConfig(root=str(place)))
        root.chmod(0o755)


@pytest.mark.parametrize("names", [("train", "validation", "test"), ("training", "valid", "testing"), ("Train", "VAL")])
def test_common_names_of_splits_are_understood(tmp_path: Path, names: tuple[str, ...]) -> None:
    for count, name in enumerate((*names, "extra", "more"), 2):
        photos(tmp_path / name, count=count)
    dataset = opened(tmp_path)
    sizes = [None if images is None else len(images) for images in (dataset.train, dataset.validation, dataset.test)]
    assert sizes == [4, 6, 8 if len(names) == 3 else None]
    (note,) = dataset.notes
    assert "not used: extra, more" in note


def test_a_class_may_have_the_name_of_a_split(tmp_path: Path) -> None:
    assert opened(photos(tmp_path, "training", "resting")).classes == ("resting", "training")


def test_classes_of_any_name_train_to_the_end(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = ["\x1b[2Jcat", "two\nlines", os.fsdecode(b"\xff\xfe"), "\u202eright", "'\"<b>&,;", "é" * 120]
    root = photos(tmp_path / "photos", *names, count=4)
    (root / names[0] / "0.jpg").write_bytes(b"no image")
    quick = ["--epochs=1", "--batch_size=8", "--data.size=16", "--data.workers=0", "--model.name=small-cnn"]
    settings = ["--data.on_error=skip", "--augment.method=base", "--logger=none", "--data.val_fraction=0.3"]
    assert main(["train", f"--data.root={root}", f"--out={tmp_path / 'run'}", *quick, *settings]) == 0
    classes = json.loads((tmp_path / "run" / "split.json").read_text(encoding="utf-8"))["classes"]
    assert len(set(classes)) == len(names)
    assert all(name.isprintable() and name.encode() for name in classes)
    with (tmp_path / "run" / "skipped.csv").open(encoding="utf-8") as file:
        (row,) = csv.DictReader(file)
    assert row["image"].endswith("0.jpg")
    assert row["image"].isprintable()
    assert "skipped 1 image" in capsys.readouterr().out


def test_class_names_that_look_alike_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="two class folders"):
        opened(photos(tmp_path, "a\n", "a\\n"))


@pytest.mark.parametrize("gib", ["0", "8"])
@pytest.mark.parametrize("split", ["train", "val", "test"])
def test_a_split_of_which_nothing_can_be_read_is_refused_before_training(
    tmp_path: Path, split: str, gib: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("train", "val", "test"):
        photos(tmp_path / "photos" / name, count=3)
    for path in (tmp_path / "photos" / split).rglob("*.jpg"):
        path.write_bytes(b"no image")
    settings = ["--data.on_error=skip", "--data.size=16", "--data.workers=0", f"--data.cache_gib={gib}"]
    assert main(["train", f"--data.root={tmp_path / 'photos'}", f"--out={tmp_path / 'run'}", *settings]) == 2
    assert {"train": "training", "val": "validation", "test": "test"}[split] in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("workers", [0, 2])
def test_images_that_cannot_be_read_while_training_are_listed(
    tmp_path: Path, workers: int, capsys: pytest.CaptureFixture[str]
) -> None:
    root = tmp_path / "photos"
    for name in ("train", "val", "test"):
        photos(root / name, count=12)
    broken = [root / split / "a" / f"{number}.jpg" for split in ("train", "val", "test") for number in (3, 7)]
    for path in broken:
        path.write_bytes(b"no image")
    settings = ["--data.on_error=skip", "--data.size=16", f"--data.workers={workers}", "--data.cache_gib=0"]
    quick = ["--epochs=1", "--batch_size=8", "--model.name=small-cnn", "--augment.method=base", "--logger=none"]
    assert main(["train", f"--data.root={root}", f"--out={tmp_path / 'run'}", *settings, *quick]) == 0
    with (tmp_path / "run" / "skipped.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["image"] for row in rows] == sorted(map(str, broken))
    assert {row["reason"] for row in rows} == {"unknown format"}
    assert "skipped 6 images that could not be read" in capsys.readouterr().out
