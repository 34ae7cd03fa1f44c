"""Arrays in an .npz file."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from madao.data import DATASETS, Dataset, DatasetRequest, InMemoryImages
from madao.errors import DataError

IMAGES = np.random.default_rng(0).integers(0, 256, (6, 8, 8, 3), dtype=np.uint8)
LABELS = np.array([7, -1, 7, 30, -1, 30])


def opened(path: Path, arrays: dict[str, Any], **settings: Any) -> Dataset:
    np.savez(path / "a.npz", **arrays)
    return DATASETS["npz"](DatasetRequest(path / "a.npz", **settings))


@pytest.mark.parametrize(("images", "labels"), [("x_{}", "y_{}"), ("{}_images", "{}_labels")])
def test_both_styles(tmp_path: Path, images: str, labels: str) -> None:
    parts = {"train": slice(None), "val": slice(0, 3), "test": slice(2, 4)}
    arrays = {images.format(name): IMAGES[part] for name, part in parts.items()}
    arrays |= {labels.format(name): LABELS[part, None] for name, part in parts.items()}
    dataset = opened(tmp_path, arrays)
    assert dataset.classes == ("-1", "7", "30")
    assert not dataset.flip
    assert isinstance(dataset.train, InMemoryImages)
    assert np.array_equal(dataset.train.images.permute(0, 2, 3, 1).numpy(), IMAGES)
    assert dataset.train.labels.tolist() == [1, 0, 1, 2, 0, 2]
    assert dataset.validation is not None
    assert dataset.validation.labels.tolist() == [1, 0, 1]
    assert dataset.test is not None
    assert dataset.test.labels.tolist() == [1, 2]
    in_folder = DATASETS["npz"](DatasetRequest(tmp_path))
    assert len(in_folder.train) == 6


def test_shapes_floats_and_side(tmp_path: Path) -> None:
    grey = {"x_train": IMAGES[..., 0], "y_train": LABELS.astype(np.uint8)}
    dataset = opened(tmp_path, grey)
    assert dataset.train.shape == (1, 8, 8)
    assert dataset.validation is dataset.test is None
    assert opened(tmp_path, grey | {"x_train": IMAGES[..., :1]}).train.shape == (1, 8, 8)
    for floats in (np.float32(IMAGES) / 255, IMAGES / 255):
        train = opened(tmp_path, {"x_train": floats, "y_train": LABELS}).train
        assert np.array_equal(train.load(range(6))[0].permute(0, 2, 3, 1).numpy(), IMAGES)
    nearly_white = opened(tmp_path, {"x_train": np.full((6, 8, 8), 0.999), "y_train": LABELS}).train
    assert nearly_white.load([0])[0].unique().tolist() == [255]
    assert opened(tmp_path, {"x_train": IMAGES, "y_train": LABELS}, side=16).train.shape == (3, 16, 16)


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        (
            {"x_train": IMAGES.transpose(0, 3, 1, 2)},
            "[6, 3, 8, 8], expected [N, H, W], [N, H, W, 1] or [N, H, W, 3]",
        ),
        ({"x_train": IMAGES[..., :2]}, "[6, 8, 8, 2]"),
        ({"x_train": IMAGES[0, 0]}, "[8, 3]"),
        ({"x_train": np.float64(IMAGES)}, "are float64 from 0.0 to 255.0, expected uint8"),
        ({"x_train": IMAGES * np.nan}, "float64 from nan to nan"),
        ({"x_train": np.int64(IMAGES)}, "int64 from 0 to 255"),
        ({"y_train": np.eye(6, dtype=np.int64)}, "is int64 [6, 6], expected whole numbers [N] or [N, 1]"),
        ({"y_train": np.float64(LABELS)}, "float64 [6]"),
        ({"y_train": LABELS[:5]}, "5 labels for 6 images"),
        ({"y_train": np.zeros(6, int)}, "has the classes [0] in train, two or more are needed"),
        ({"x_test": IMAGES, "y_test": LABELS + 1}, "has the label 0, which train does not have"),
        ({"x_test": IMAGES[:, :4], "y_test": LABELS}, "has images (3, 4, 8), train (3, 8, 8); make them the same"),
        ({"x_test": IMAGES}, "holds x_test but no y_test; expected x_train"),
        ({"y_train": LABELS.astype(object)}, "Object arrays cannot be loaded"),
    ],
)
def test_mistakes_in_the_arrays(tmp_path: Path, arrays: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=rf"^[^\n]*{re.escape(message)}[^\n]*$"):
        opened(tmp_path, {"x_train": IMAGES, "y_train": LABELS} | arrays)


def test_mistakes_in_the_file(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"a\.npz holds images, labels; expected x_train, y_train .* or train_images"):
        opened(tmp_path, {"labels": LABELS, "images": IMAGES})
    np.save(tmp_path / "b.npy", IMAGES)
    for content in (b"nothing", b"PK\x03\x04nothing", b"", (tmp_path / "b.npy").read_bytes()):
        (tmp_path / "a.npz").write_bytes(content)
        with pytest.raises(DataError, match=r"cannot read .*a\.npz as arrays of numbers \(.*with numpy\.savez"):
            DATASETS["npz"](DatasetRequest(tmp_path / "a.npz"))
    (tmp_path / "c.npz").touch()
    with pytest.raises(DataError, match=r"holds 2 \.npz files, not one; set `data\.root` to the file"):
        DATASETS["npz"](DatasetRequest(tmp_path))
    with pytest.raises(DataError, match=r"there is no file .*missing"):
        DATASETS["npz"](DatasetRequest(tmp_path / "missing"))
