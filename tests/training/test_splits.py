"""Which images a run trains on, and which are set aside."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch

from madao.config.train_config import DataConfig
from madao.data import GpuDecodedImages, InMemoryImages
from madao.data.datasets.folder import holds_classes
from madao.data.image_files import ImageFiles
from madao.data.lazy_images import SkippedImage
from madao.errors import UserError
from madao.training.splits import Splits, describe_skipped, load_splits, on_device
from tests.helpers.training import splits

COUNTS = (40, 20, 20)
"""Training images of each class."""


def written(folder: Path, validation: bool = False) -> Path:
    """Images that tell their number: of the training images the brightness, of validation images 200 and more."""
    labels = np.repeat(np.arange(3), COUNTS)
    images = np.broadcast_to(np.arange(80, dtype=np.uint8)[:, None, None], (80, 8, 8))
    arrays = {"x_train": images, "y_train": labels}
    if validation:
        arrays |= {"x_val": images[:6] + 200, "y_val": np.arange(6) % 3}
    np.savez(folder / "data.npz", **arrays)  # type: ignore[arg-type]  # numpy's own stub takes the names for options
    return folder / "data.npz"


def loaded(root: Path, images: int | None, seed: int = 0) -> Splits:
    return load_splits(DataConfig(root=str(root), max_images=images, val_fraction=0.2, split_seed=seed))


def numbers(images: object) -> list[int]:
    assert isinstance(images, InMemoryImages)
    return images.images[:, 0, 0, 0].tolist()


@pytest.mark.parametrize("validation", [False, True])
def test_of_each_class_its_share_is_used(validation: bool, tmp_path: Path) -> None:
    found = loaded(written(tmp_path, validation), 20)
    used = numbers(found.train) if validation else sorted(numbers(found.train) + numbers(found.validation))
    assert len(set(used)) == 20
    assert torch.bincount(torch.bucketize(torch.tensor(used), torch.tensor([39, 59]))).tolist() == [10, 5, 5]
    assert len(found.train) == (20 if validation else 16)
    if validation:
        assert numbers(found.validation) == [200, 201, 202, 203, 204, 205]
        assert found.validation_indices is None


def test_what_is_set_aside_is_told_by_its_place_among_all_images(tmp_path: Path) -> None:
    root = written(tmp_path)
    for images in (None, 80, 20):
        found = loaded(root, images)
        assert found.validation_indices is not None
        assert found.validation_indices.tolist() == numbers(found.validation)
    assert numbers(loaded(root, None).train) == numbers(loaded(root, 80).train)


@pytest.mark.parametrize(
    ("name", "files", "hinted"),
    [
        ("cifar10", ["cat/1.png", "dog/2.JPG"], True),
        ("flowers102", ["train/cat/1.png", "train/dog/2.png"], True),
        ("cifar10", ["cat/1.png", "notes/2.txt"], False),
        ("cifar10", ["1.png", "2.png"], False),
        ("cifar10", [".cat/1.png", "dog/2.png"], False),
    ],
)
def test_photos_in_the_place_of_a_named_data_set_are_seen(
    tmp_path: Path, name: str, files: list[str], hinted: bool
) -> None:
    for file in files:
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).touch()
    with pytest.raises(UserError, match=f"found no complete {name}") as caught:
        load_splits(DataConfig(name=name, root=str(tmp_path)))
    hint = f"; to train on the folders of images in {tmp_path} leave out `recipe` and `data.name`"
    assert str(caught.value).endswith(hint) == hinted


def test_what_may_not_be_read_holds_no_photos(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "lost").mkdir()

    def refused(path: Path) -> None:
        raise PermissionError(f"{path}: Permission denied")

    monkeypatch.setattr(Path, "iterdir", refused)
    assert not holds_classes(tmp_path)


def test_all_may_be_trained_on(tmp_path: Path) -> None:
    found = load_splits(DataConfig(root=str(written(tmp_path)), val_fraction=0))
    assert numbers(found.train) == [*range(80)]
    assert found.validation is None
    assert found.validation_indices is None
    assert found.fingerprint()["validation"] == 0
    assert numbers(found.on(torch.device("cpu")).train) == [*range(80)]
    few = load_splits(DataConfig(root=str(written(tmp_path)), val_fraction=0, max_images=3))
    assert len(few.train) == 3  # one of each class, since none is set aside
    with pytest.raises(UserError, match=r"npz comes with validation images, and `data\.val_fraction=0`"):
        load_splits(DataConfig(root=str(written(tmp_path, validation=True)), val_fraction=0))


def test_the_seed_decides_which(tmp_path: Path) -> None:
    root = written(tmp_path, validation=True)
    assert numbers(loaded(root, 20).train) == numbers(loaded(root, 20).train)
    assert numbers(loaded(root, 20).train) != numbers(loaded(root, 20, seed=1).train)


def test_more_than_there_are_is_all_of_them(tmp_path: Path) -> None:
    root = written(tmp_path)
    assert numbers(loaded(root, 81).train) == numbers(loaded(root, None).train)


@pytest.mark.parametrize(("validation", "least", "each"), [(False, 6, 2), (True, 3, 1)])
def test_too_few_names_the_least(validation: bool, least: int, each: int, tmp_path: Path) -> None:
    root = written(tmp_path, validation)
    assert len(loaded(root, least).train) == 3
    with pytest.raises(UserError, match=rf"`data\.max_images` must be at least {least}, {each} of each class, got"):
        loaded(root, least - 1)


def test_workers_decode_where_the_device_cannot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = ImageFiles([tmp_path / "a.jpg"], torch.tensor([0]), 8)
    lost = SkippedImage("b.jpg", "truncated"), SkippedImage("a.jpg", "unknown format")
    given = dataclasses.replace(splits(), train=files, skipped=lost)
    skipped = describe_skipped(lost)
    assert skipped == ("skipped 2 images that could not be read, such as a.jpg (unknown format); skipped.csv lists all")
    moved, notes = on_device(given, DataConfig(), torch.device("cpu"))
    assert (moved.train, notes) == (files, [skipped])
    moved, notes = on_device(given, DataConfig(decode="gpu"), torch.device("cpu"))
    assert moved.train is files
    assert notes == [skipped, "`data.decode=gpu`: the device is cpu, so worker processes decode the images"]
    monkeypatch.setattr("madao.training.splits.gpu_decode_error", lambda device: None)
    moved, notes = on_device(given, DataConfig(decode="gpu"), torch.device("cpu"))
    assert isinstance(moved.train, GpuDecodedImages)
    assert isinstance(moved.validation, InMemoryImages)
    assert notes == [skipped]
    assert on_device(given, DataConfig(decode="workers"), torch.device("cpu"))[0].train is files
    assert on_device(splits(), DataConfig(decode="gpu"), torch.device("cpu"))[1] == []
