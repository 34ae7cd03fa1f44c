"""Folders of images."""

import re
from pathlib import Path

import pytest

from madao.data import DATASETS, Dataset, DatasetRequest, ImageFiles, Images
from madao.errors import DataError
from tests.helpers.image_files import write_image


def opened(root: Path) -> Dataset:
    return DATASETS["folder"](DatasetRequest(root))


def make(root: Path, *names: str) -> None:
    for name in names:
        write_image(root / name, 100)


def found(images: Images | None) -> list[tuple[str, int]]:
    assert isinstance(images, ImageFiles)
    return [(path.name, label) for path, label in zip(images.paths, images.labels.tolist(), strict=True)]


TRAIN = ["train/cat/1.png", "train/dog/1.png"]


def test_one_folder(tmp_path: Path) -> None:
    make(tmp_path, "dog/2.JPG", "dog/1.png", "cat/deep/er/3.Tiff", "cat/9.webp", "cat/.hidden/4.png", ".git/x/5.png")
    make(tmp_path, "cat/.6.png", "stray.png")
    (tmp_path / "cat" / "notes.txt").write_text("not an image")
    dataset = opened(tmp_path)
    assert dataset.classes == ("cat", "dog")
    assert found(dataset.train) == [("9.webp", 0), ("3.Tiff", 0), ("1.png", 1), ("2.JPG", 1)]
    assert dataset.validation is dataset.test is None
    assert dataset.flip
    assert dataset.train.shape == (3, 256, 256)
    assert dataset.train.load([0, 1, 2, 3])[1] == [0, 1, 2, 3]


@pytest.mark.parametrize("validation", ["val", "valid", "validation"])
def test_splits(tmp_path: Path, validation: str) -> None:
    make(tmp_path, "train/cat/1.png", "train/dog/2.png", f"{validation}/dog/3.png", "test/cat/4.png", "other/x/5.png")
    dataset = opened(tmp_path)
    assert dataset.classes == ("cat", "dog")
    assert found(dataset.train) == [("1.png", 0), ("2.png", 1)]
    assert found(dataset.validation) == [("3.png", 1)]
    assert found(dataset.test) == [("4.png", 0)]


def test_splits_are_optional_and_links_are_followed(tmp_path: Path) -> None:
    make(tmp_path / "elsewhere", "1.png")
    (tmp_path / "elsewhere" / "more").symlink_to(tmp_path / "far", target_is_directory=True)
    make(tmp_path / "far", "2.png")
    make(tmp_path / "data", "train/cat/1.png")
    (tmp_path / "data/train/dog").symlink_to(tmp_path / "elsewhere", target_is_directory=True)
    dataset = opened(tmp_path / "data")
    assert found(dataset.train) == [("1.png", 0), ("1.png", 1), ("2.png", 1)]
    assert dataset.validation is dataset.test is None


def test_side_and_on_error(tmp_path: Path) -> None:
    make(tmp_path, "cat/1.png", "dog/2.png")
    (tmp_path / "dog" / "2.png").write_bytes(b"nothing")
    train = DATASETS["folder"](DatasetRequest(tmp_path, side=24, on_error="skip")).train
    assert train.shape == (3, 24, 24)
    assert train.load([0, 1])[1] == [0]
    with pytest.raises(DataError, match="side must be at least 1, got 0"):
        DatasetRequest(tmp_path, side=0)


@pytest.mark.parametrize(
    ("files", "empty", "place", "message"),
    [
        ([], [], "a", "there is no folder a; `data.root` must be the folder"),
        (["1.png"], [], "1.png", "there is no folder 1.png"),
        (["1.png"], [], "", "images but no class folder; expected <root>/<class>/<images>"),
        ([".git/1.png"], [], "", "has no class folder"),
        (["0.tar"], [], "", "no class folder but .tar files; read them with `data.name=webdataset`"),
        (["cat/1.png"], [], "", "has one class, cat, two or more are needed"),
        (["cat/1.png", "dog/1.png"], ["empty"], "", "empty has no image; add some (.jpg .jpeg .png"),
        (["val/cat/1.png", "test/cat/1.png"], [], "", "has test and val but no train"),
        (["train/cat/1.png"], [], "", "train has one class, cat"),
        ([*TRAIN, "val/bird/1.png"], [], "", "val/bird is a class that train does not have; add it there or remove"),
        (TRAIN, ["test/dog"], "", "test/dog has no image"),
        (TRAIN, ["val", "valid"], "", "has val and valid, which mean the same; keep one"),
        (TRAIN, ["test"], "", "test has no class folder"),
    ],
)
def test_mistakes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: list[str], empty: list[str], place: str, message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in files:
        write_image(Path(name), 100, format="png")
    for name in empty:
        Path(name).mkdir(parents=True)
    with pytest.raises(DataError, match=rf"^[^\n]*{re.escape(message)}[^\n]*$"):
        opened(Path(place))
