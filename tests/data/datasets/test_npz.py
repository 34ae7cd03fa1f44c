"""Arrays in an .npz file."""

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


def refused(path: Path, **arrays: Any) -> str:
    with pytest.raises(DataError) as caught:
        opened(path, {"x_train": IMAGES, "y_train": LABELS} | arrays)
    assert "\n" not in str(caught.value)
    return str(caught.value)


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


def test_mistakes_in_the_arrays(tmp_path: Path) -> None:
    for bad in (IMAGES.transpose(0, 3, 1, 2), IMAGES[..., :2], IMAGES[0, 0]):
        message = refused(tmp_path, x_train=bad)
        assert f"are {list(bad.shape)}, expected [N, H, W], [N, H, W, 1] or [N, H, W, 3]" in message
    assert "are float64 from 0.0 to 255.0, expected uint8" in refused(tmp_path, x_train=np.float64(IMAGES))
    assert "are float64 from nan to nan" in refused(tmp_path, x_train=IMAGES * np.nan)
    assert "are int64 from 0 to 255, expected uint8" in refused(tmp_path, x_train=np.int64(IMAGES))
    assert "y_train of" in refused(tmp_path, y_train=np.eye(6, dtype=np.int64))
    assert "is int64 [6, 6], expected whole numbers [N] or [N, 1]; labels.argmax(1)" in refused(
        tmp_path, y_train=np.eye(6, dtype=np.int64)
    )
    assert "is float64 [6], expected whole numbers" in refused(tmp_path, y_train=np.float64(LABELS))
    assert "one label per image, got 5 labels for 6 images" in refused(tmp_path, y_train=LABELS[:5])
    assert "has the classes [0] in train, two or more are needed" in refused(tmp_path, y_train=np.zeros(6, int))
    assert "has the label 0, which train does not have" in refused(tmp_path, x_test=IMAGES, y_test=LABELS + 1)
    different = refused(tmp_path, x_test=IMAGES[:, :4], y_test=LABELS)
    assert "has images (3, 4, 8), train (3, 8, 8); make them the same" in different


def test_mistakes_in_the_file(tmp_path: Path) -> None:
    assert "holds x_test but no y_test; expected x_train" in refused(tmp_path, x_test=IMAGES)
    with pytest.raises(DataError, match=r"a\.npz holds images, labels; expected x_train, y_train .* or train_images"):
        opened(tmp_path, {"labels": LABELS, "images": IMAGES})
    assert "Object arrays cannot be loaded" in refused(tmp_path, y_train=LABELS.astype(object))
    for content in (b"nothing", b"PK\x03\x04nothing", b""):
        (tmp_path / "a.npz").write_bytes(content)
        with pytest.raises(
            DataError, match=r"cannot read .*a\.npz as arrays of numbers \(.*write it with numpy\.savez"
        ):
            DATASETS["npz"](DatasetRequest(tmp_path / "a.npz"))
    np.save(tmp_path / "b.npy", IMAGES)
    with pytest.raises(DataError, match=r"cannot read .*b\.npy as arrays"):
        DATASETS["npz"](DatasetRequest(tmp_path / "b.npy"))
    (tmp_path / "c.npz").touch()
    with pytest.raises(DataError, match=r"holds 2 \.npz files, not one; --data\.root names the file"):
        DATASETS["npz"](DatasetRequest(tmp_path))
    with pytest.raises(DataError, match=r"there is no file .*missing; --data"):
        DATASETS["npz"](DatasetRequest(tmp_path / "missing"))
