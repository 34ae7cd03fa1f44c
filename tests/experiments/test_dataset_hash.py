"""What tells one data set from another: their images, not where they lie."""

import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from madao.config.train_config import DataConfig
from madao.errors import UserError
from madao.experiments.dataset_hash import dataset_hash


def arrays(path: Path, seed: int) -> DataConfig:
    images = np.random.default_rng(seed).integers(0, 256, (40, 8, 8), dtype=np.uint8)
    path.parent.mkdir(exist_ok=True)
    np.savez(path, x_train=images, y_train=np.arange(40) % 2)
    return DataConfig(root=str(path))


def test_arrays_are_told_apart_by_their_pixels(tmp_path: Path) -> None:
    one, other = arrays(tmp_path / "a" / "photos.npz", 0), arrays(tmp_path / "b" / "photos.npz", 1)
    assert dataset_hash(one) != dataset_hash(other)
    assert dataset_hash(arrays(tmp_path / "c" / "moved.npz", 0)) == dataset_hash(one)
    assert dataset_hash(DataConfig(root=one.root, size=4)) == dataset_hash(one)


def test_folders_are_told_apart_by_their_files(tmp_path: Path) -> None:
    for number in range(8):
        path = tmp_path / "a" / f"class {number % 2}" / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (9, 9), (number, 0, 0)).save(path)
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    one, other = (DataConfig(root=str(tmp_path / name)) for name in "ab")
    assert dataset_hash(one) == dataset_hash(other)
    Image.new("RGB", (9, 9), (99, 0, 0)).save(tmp_path / "b" / "class 0" / "0.png")
    assert dataset_hash(one) != dataset_hash(other)


def test_what_is_generated_lies_nowhere(tmp_path: Path) -> None:
    assert dataset_hash(DataConfig()) == dataset_hash(DataConfig(name="digits", root=str(tmp_path)))
    with pytest.raises(UserError, match="nowhere"):
        dataset_hash(DataConfig(root="nowhere"))
