"""Resuming recognises the images of a run by their labels and order, wherever they are."""

import dataclasses
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from madao.config.train_config import DataConfig
from madao.data import InMemoryImages
from madao.errors import UserError
from madao.training.builders.run import build_run
from madao.training.fingerprint import digest_labels, digest_order
from madao.training.splits import load_splits
from madao.training.trainer import Trainer
from tests.helpers.image_files import write_image
from tests.helpers.training import settings


def in_memory(images: torch.Tensor, labels: list[int], masks: torch.Tensor | None = None) -> InMemoryImages:
    return InMemoryImages(images, torch.tensor(labels), masks)


def fingerprint(root: Path, cache_gib: float = 8.0) -> dict[str, object]:
    return load_splits(DataConfig(root=str(root), workers=0, size=8, cache_gib=cache_gib)).fingerprint()


def folder(root: Path, count: int = 12) -> Path:
    for number in range(count):
        write_image(root / f"class {number % 2}" / f"{number:02}.png", 10 * number)
    return root


def test_labels_masks_and_order_count() -> None:
    images = torch.arange(4 * 3 * 2 * 2, dtype=torch.uint8).reshape(4, 3, 2, 2)
    masks = torch.tensor([0, 1, 0, 1], dtype=torch.uint8).reshape(4, 1, 1).expand(4, 2, 2)
    one, turned = in_memory(images, [0, 1, 0, 1]), in_memory(images[[2, 1, 0, 3]], [0, 1, 0, 1])
    assert digest_labels([one]) == digest_labels([turned])
    assert digest_order([one]) != digest_order([turned])
    relabelled = in_memory(images, [0, 1, 1, 0])
    assert digest_labels([one]) != digest_labels([relabelled])
    assert digest_order([one]) == digest_order([relabelled])
    assert digest_labels([one, None]) != digest_labels([None, one])
    painted = [in_memory(images, [0] * 4, each) for each in (masks, 1 - masks)]
    assert digest_labels(painted[:1]) != digest_labels(painted[1:])


def test_the_folder_and_where_files_are_decoded_do_not_count(tmp_path: Path) -> None:
    root = folder(tmp_path / "photos")
    shutil.copytree(root, tmp_path / "elsewhere" / "moved")
    expected = fingerprint(root)
    assert fingerprint(tmp_path / "elsewhere" / "moved") == expected
    later = fingerprint(root, cache_gib=0.0)
    assert [later[name] for name in ("labels", "order")] == [expected[name] for name in ("labels", "order")]


def test_files_in_another_class_or_order_are_noticed(tmp_path: Path) -> None:
    root = folder(tmp_path)
    before = fingerprint(root)
    for one, other in (("class 0/00.png", "class 0/02.png"), ("class 0/00.png", "class 1/01.png")):
        (root / one).rename(root / "class 0" / "x.png")
        assert fingerprint(root)["order"] != before["order"], (one, other)
        (root / "class 0" / "x.png").rename(root / one)
    assert fingerprint(root) == before


def arrays(path: Path, images: np.ndarray, labels: np.ndarray) -> str:
    np.savez(path, x_train=images, y_train=labels, x_val=images[:6], y_val=np.arange(6) % 3)
    return str(path)


@pytest.mark.parametrize("change", ["none", "labels", "order"])
def test_a_run_is_not_resumed_on_images_that_are_labelled_or_ordered_otherwise(tmp_path: Path, change: str) -> None:
    images = np.random.default_rng(0).integers(0, 256, (60, 8, 8), dtype=np.uint8)
    labels = np.arange(60) % 3
    path = tmp_path / "photos.npz"
    config = settings(tmp_path / "run", method="base", data=DataConfig(root=arrays(path, images, labels), workers=0))
    first = dataclasses.replace(config, epochs=1)
    Trainer(build_run(first)).fit()
    # Both keep the number of images of each class, and their mean and deviation.
    if change == "labels":
        arrays(path, images, (labels + 1) % 3)
    elif change == "order":
        turned = np.arange(60).reshape(-1, 3)[::-1].reshape(-1)
        arrays(path, images[turned], labels)
    again = dataclasses.replace(first, resume=True)
    if change == "none":
        Trainer(build_run(again)).fit()
        return
    with pytest.raises(UserError, match="not those that the run in"):
        Trainer(build_run(again)).fit()
