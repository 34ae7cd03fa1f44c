"""Drawn shapes, and folders of images and masks."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from madao.data import DATASETS, DatasetRequest, InMemoryImages
from madao.data.datasets.masks import is_mask_folder
from madao.data.datasets.synthetic_shift import plant, plant_masks
from madao.errors import DataError


def test_shapes_are_the_same_at_every_call_and_brighter_than_their_ground() -> None:
    first, again = (DATASETS["shapes"](DatasetRequest(Path("unused"))) for _ in range(2))
    assert isinstance(first.train, InMemoryImages)
    assert isinstance(again.train, InMemoryImages)
    assert torch.equal(first.train.images, again.train.images)
    assert torch.equal(first.train.targets, again.train.targets)
    assert first.train.targets.unique().tolist() == [0, 1, 2, 3]
    inside = first.train.images[:, 0][first.train.targets > 0].float().mean()
    assert inside > first.train.images[:, 0][first.train.targets == 0].float().mean() + 80


@pytest.mark.parametrize("shift", ["rotate", "translate", "shear"])
def test_a_shift_moves_masks_with_images(shift: str) -> None:
    mask = torch.zeros(50, 24, 24, dtype=torch.uint8)
    mask[:, 4:12, 7:20] = 200
    images, moved = plant(mask[:, None], torch.zeros(50), shift, seed=4)[:, 0], plant_masks(mask, shift, seed=4)
    clear = (moved != 255) & ((images < 5) | (images > 195))  # else between two levels
    assert torch.equal(images[clear] > 100, moved[clear] > 100)
    assert clear.float().mean() > 0.6
    assert (moved == 255).any()
    assert not torch.equal(moved, mask)
    assert torch.equal(plant_masks(mask, "invert", seed=4), mask)


def write(root: Path, count: int, size: tuple[int, int] = (30, 20), classes: int = 3) -> None:
    for name in ("images", "masks"):
        (root / name).mkdir(parents=True)
    for number in range(count):
        mask = np.arange(size[0] * size[1]).reshape(size[1], size[0]) % classes
        Image.fromarray((mask * 60).astype(np.uint8)).convert("RGB").save(root / "images" / f"{number}.png")
        Image.fromarray(mask.astype(np.uint8)).save(root / "masks" / f"{number}.png")


def test_a_folder_of_images_and_masks(tmp_path: Path) -> None:
    for name in ("train", "val", "test"):
        write(tmp_path / name, 4)
    assert is_mask_folder(tmp_path)
    (tmp_path / "classes.txt").write_text("ground\ncat\ndog\n")
    found = DATASETS["masks"](DatasetRequest(tmp_path, side=20))  # the middle, not scaled
    assert found.classes == ("ground", "cat", "dog")
    assert isinstance(found.train, InMemoryImages)
    assert torch.equal(found.train.images[:, 0] // 60, found.train.targets)
    assert found.train.targets.shape == (4, 20, 20)
    assert found.validation is not None
    assert found.test is not None
    assert not is_mask_folder(tmp_path / "train" / "images")


@pytest.mark.parametrize(
    ("mask", "classes", "message"),
    [
        (None, "ground\ncat\ndog", r"1\.png has no mask"),
        (Image.new("RGB", (30, 20)), "ground\ncat\ndog", "its mode is RGB; expected L or P"),
        (Image.new("L", (20, 20)), "ground\ncat\ndog", r"it has \(20, 20\) pixels, its image \(30, 20\)"),
        (Image.new("L", (30, 20)), "ground\ncat", "the training masks have the class 2, but there are 2 classes"),
    ],
)
def test_mistakes(tmp_path: Path, mask: Image.Image | None, classes: str, message: str) -> None:
    write(tmp_path, 3)
    (tmp_path / "classes.txt").write_text(classes)
    (tmp_path / "masks" / "1.png").unlink()
    if mask is not None:
        mask.save(tmp_path / "masks" / "1.png")
    with pytest.raises(DataError, match=message):
        DATASETS["masks"](DatasetRequest(tmp_path, side=8))
    if "dog" in classes:  # the image alone is wrong
        assert len(DATASETS["masks"](DatasetRequest(tmp_path, side=8, on_error="skip")).train) == 2


def test_masks_are_scaled_to_the_nearest_pixel() -> None:
    values = torch.arange(16, dtype=torch.uint8).reshape(1, 1, 4, 4)
    small = InMemoryImages(values, torch.zeros(1, dtype=torch.int64), values[:, 0]).resized(2)
    assert small.targets.tolist() == [[[5, 7], [13, 15]]]
