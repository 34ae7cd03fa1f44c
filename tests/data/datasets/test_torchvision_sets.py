"""Public data sets, from tiny copies in torchvision's layout."""

import pickle
import re
import urllib.error
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.io
import torch
import torchvision.datasets

from madao.data import DATASETS, Dataset, DatasetRequest, ImageFiles, Images
from madao.errors import DataError, DatasetNotFoundError
from tests.helpers.image_files import write_image


@pytest.fixture(autouse=True)
def _any_checksum(monkeypatch: pytest.MonkeyPatch) -> None:
    """Our copies are not the real files: that one is there is all that is checked."""
    monkeypatch.setattr("torchvision.datasets.utils.check_md5", lambda path, md5: True)


def noise(count: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    return np.random.default_rng(count).integers(0, 256, (count, 3, 32, 32), dtype=np.uint8)


def cifar(root: Path, name: str) -> None:
    base = root / ("cifar-10-batches-py" if name == "cifar10" else "cifar-100-python")
    base.mkdir()
    key = "labels" if name == "cifar10" else "fine_labels"
    parts = [f"data_batch_{i}" for i in range(1, 6)] if name == "cifar10" else ["train"]
    test, meta = ("test_batch", "batches.meta") if name == "cifar10" else ("test", "meta")
    for part in parts:
        (base / part).write_bytes(pickle.dumps({"data": noise(4).reshape(4, -1), key: [3, 1, 0, 2]}))
    (base / test).write_bytes(pickle.dumps({"data": noise(2).reshape(2, -1), key: [1, 3]}))
    classes = {"label_names" if name == "cifar10" else "fine_label_names": ["a", "b", "c", "d"]}
    (base / meta).write_bytes(pickle.dumps(classes))


def svhn(root: Path) -> None:
    for split, labels in (("train", [10, 1, 9]), ("test", [2, 10])):
        images = noise(len(labels)).transpose(2, 3, 1, 0)
        scipy.io.savemat(root / f"{split}_32x32.mat", {"X": images, "y": np.array(labels)[:, None]})


def imagenet(root: Path) -> None:
    torch.save(({"n01": ("tench", "Tinca tinca"), "n02": ("goldfish",)}, ["n01", "n02"]), root / "meta.bin")
    for i, name in enumerate(("train/n01/a", "train/n02/b", "train/n02/c", "val/n02/d", "val/n01/e")):
        write_image(root / f"{name}.JPEG", 20 * i)


def flowers102(root: Path) -> None:
    base = root / "flowers-102"
    for i in range(1, 6):
        write_image(base / "jpg" / f"image_{i:05d}.jpg", 20 * i)
    scipy.io.savemat(base / "imagelabels.mat", {"labels": [1, 102, 3, 4, 5]})
    scipy.io.savemat(base / "setid.mat", {"trnid": [2, 1], "valid": [4, 3], "tstid": [5, 1]})


def oxford_pets(root: Path) -> None:
    base = root / "oxford-iiit-pet"
    (base / "annotations").mkdir(parents=True)
    for i, name in enumerate(("great_dane_1", "Bengal_7", "Bengal_8")):
        write_image(base / "images" / f"{name}.jpg", 20 * i)
    (base / "annotations" / "trainval.txt").write_text("great_dane_1 2 2 1\nBengal_7 1 1 1\n")
    (base / "annotations" / "test.txt").write_text("Bengal_8 1 1 1\n")


def fgvc_aircraft(root: Path) -> None:
    data = root / "fgvc-aircraft-2013b" / "data"
    for i in range(3):
        write_image(data / "images" / f"{i}.jpg", 20 * i)
    (data / "families.txt").write_text("A320\nBoeing 737\n")
    (data / "variants.txt").write_text("A320-200\n737-300\n737-400\n")
    (data / "images_family_trainval.txt").write_text("1 Boeing 737\n0 A320\n")
    (data / "images_family_test.txt").write_text("2 Boeing 737\n")


def stanford_cars(root: Path) -> None:
    base = root / "stanford_cars"
    (base / "devkit").mkdir(parents=True)

    def annotations(names: list[str], classes: list[int]) -> dict[str, Any]:
        rows = list(zip(names, classes, strict=True))
        return {"annotations": np.array(rows, dtype=[("fname", object), ("class", np.uint8)])}

    for name in ("cars_train/1.jpg", "cars_train/2.jpg", "cars_test/1.jpg", "cars_test/2.jpg"):
        write_image(base / name, 50)
    scipy.io.savemat(base / "devkit" / "cars_train_annos.mat", annotations(["1.jpg", "2.jpg"], [196, 1]))
    scipy.io.savemat(base / "cars_test_annos_withlabels.mat", annotations(["2.jpg", "1.jpg"], [2, 1]))
    names = np.array([f"car {i}" for i in range(196)], dtype=object)
    scipy.io.savemat(base / "devkit" / "cars_meta.mat", {"class_names": names})


LAYOUTS: dict[str, Callable[[Path], None]] = {
    "cifar10": lambda root: cifar(root, "cifar10"),
    "cifar100": lambda root: cifar(root, "cifar100"),
    "svhn": svhn,
    "imagenet": imagenet,
    "flowers102": flowers102,
    "oxford-pets": oxford_pets,
    "fgvc-aircraft": fgvc_aircraft,
    "stanford-cars": stanford_cars,
}


def opened(name: str, root: Path, **settings: Any) -> Dataset:
    LAYOUTS[name](root)
    dataset = DATASETS[name](DatasetRequest(root, **settings))
    assert dataset.name == name
    assert dataset.validation is None
    return dataset


def labels(images: Images | None) -> list[int]:
    assert images is not None
    return images.labels.tolist()


@pytest.mark.parametrize("name", ["cifar10", "cifar100"])
def test_cifar(tmp_path: Path, name: str) -> None:
    dataset = opened(name, tmp_path)
    assert dataset.classes == ("a", "b", "c", "d")
    assert dataset.flip
    assert labels(dataset.train) == [3, 1, 0, 2] * (5 if name == "cifar10" else 1)
    assert labels(dataset.test) == [1, 3]
    assert torch.equal(dataset.train.load(range(4))[0], torch.from_numpy(noise(4)))
    assert dataset.test is not None
    assert torch.equal(dataset.test.load(range(2))[0], torch.from_numpy(noise(2)))


def test_svhn_calls_ten_zero_and_is_not_mirrored(tmp_path: Path) -> None:
    dataset = opened("svhn", tmp_path)
    assert dataset.classes == tuple("0123456789")
    assert not dataset.flip
    assert labels(dataset.train) == [0, 1, 9]
    assert labels(dataset.test) == [2, 0]
    assert torch.equal(dataset.train.load([0, 1, 2])[0], torch.from_numpy(noise(3)))


def test_another_side(tmp_path: Path) -> None:
    assert opened("cifar10", tmp_path, side=16).train.shape == (3, 16, 16)
    flowers = opened("flowers102", tmp_path, side=20, on_error="skip").train
    assert flowers.shape == (3, 20, 20)
    assert isinstance(flowers, ImageFiles)
    assert flowers.on_error == "skip"


FILES: dict[str, tuple[int, tuple[str, str], list[str], list[int], list[str], list[int]]] = {
    "imagenet": (2, ("tench", "goldfish"), ["n01/a", "n02/b", "n02/c"], [0, 1, 1], ["n01/e", "n02/d"], [0, 1]),
    # The official training and validation images together are the training split.
    "flowers102": (
        102,
        ("pink primrose", "blackberry lily"),
        [f"jpg/image_{i:05d}" for i in (2, 1, 4, 3)],
        [101, 0, 3, 2],
        ["jpg/image_00005", "jpg/image_00001"],
        [4, 0],
    ),
    "oxford-pets": (
        2,
        ("Bengal", "Great Dane"),
        ["images/great_dane_1", "images/Bengal_7"],
        [1, 0],
        ["images/Bengal_8"],
        [0],
    ),
    "fgvc-aircraft": (2, ("A320", "Boeing 737"), ["images/1", "images/0"], [1, 0], ["images/2"], [1]),
    "stanford-cars": (
        196,
        ("car 0", "car 195"),
        ["cars_train/1", "cars_train/2"],
        [195, 0],
        ["cars_test/2", "cars_test/1"],
        [1, 0],
    ),
}
"""By name: number of classes, the first and the last one, then files and labels of training and test images."""


@pytest.mark.parametrize("name", FILES)
def test_files_and_labels(tmp_path: Path, name: str) -> None:
    dataset = opened(name, tmp_path)
    found: list[object] = [len(dataset.classes), (dataset.classes[0], dataset.classes[-1])]
    for images in (dataset.train, dataset.test):
        assert isinstance(images, ImageFiles)
        found += [[f"{path.parent.name}/{path.stem}" for path in images.paths], images.labels.tolist()]
    assert tuple(found) == FILES[name]
    assert dataset.flip
    assert dataset.train.load([0])[0].shape == (1, 3, 256, 256)


def test_imagenet_with_other_class_folders_in_test_is_refused(tmp_path: Path) -> None:
    imagenet(tmp_path)
    (tmp_path / "val" / "n01").rename(tmp_path / "n01")
    with pytest.raises(DataError, match=r"train and val in .* have different class folders; extract"):
        DATASETS["imagenet"](DatasetRequest(tmp_path))


@pytest.mark.parametrize("name", LAYOUTS)
def test_missing_data(tmp_path: Path, name: str) -> None:
    by_hand = {"imagenet": "put ILSVRC2012_devkit_t12.tar.gz,", "stanford-cars": "put stanford_cars/ with cars_train/"}
    remedy = by_hand.get(name, "download it with `data.download=true`")
    with pytest.raises(DatasetNotFoundError, match=rf"^found no complete {name} in {tmp_path}; .*{re.escape(remedy)}"):
        DATASETS[name](DatasetRequest(tmp_path))


@pytest.mark.parametrize("name", ["cifar10", "svhn", "flowers102", "oxford-pets", "fgvc-aircraft"])
def test_a_failed_download_names_its_reason(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def unreachable(*arguments: object, **options: object) -> None:
        raise urllib.error.URLError("no route\nto host")

    monkeypatch.setattr("urllib.request.urlopen", unreachable)
    with pytest.raises(DatasetNotFoundError, match=rf"{name} .*no route to host.*; the download failed: check the net"):
        DATASETS[name](DatasetRequest(tmp_path, download=True))


def test_a_file_missing_among_the_others_is_named(tmp_path: Path) -> None:
    oxford_pets(tmp_path)
    (tmp_path / "oxford-iiit-pet" / "annotations" / "test.txt").unlink()
    with pytest.raises(DatasetNotFoundError, match=r"annotations/test\.txt"):
        DATASETS["oxford-pets"](DatasetRequest(tmp_path))


def test_a_missing_package_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def without(*arguments: object, **options: object) -> None:
        raise ModuleNotFoundError("No module named 'scipy'", name="scipy")

    monkeypatch.setattr(torchvision.datasets, "SVHN", without)
    with pytest.raises(DataError, match=r"^svhn needs the package scipy: pip install scipy$"):
        DATASETS["svhn"](DatasetRequest(tmp_path))
