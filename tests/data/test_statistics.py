"""Mean and standard deviation, against numpy in float64."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from madao.data import ImageFiles, InMemoryImages, mean_and_std
from madao.errors import DataError


def reference(images: Tensor) -> tuple[list[float], list[float]]:
    values = images.numpy().astype(np.float64) / 255
    return values.mean((0, 2, 3)).tolist(), values.std((0, 2, 3)).tolist()


def test_equals_numpy_over_many_batches(crops: Tensor) -> None:
    images = crops.repeat(40, 1, 1, 1)[:600]
    images[300:] //= 2
    labels = torch.zeros(600, dtype=torch.int64)
    mean, std = mean_and_std(InMemoryImages(images, labels))
    expected = reference(images)
    np.testing.assert_allclose(mean, expected[0], rtol=1e-12)
    np.testing.assert_allclose(std, expected[1], rtol=1e-12)
    shuffled = images[torch.randperm(600, generator=torch.Generator())]
    assert mean_and_std(InMemoryImages(shuffled, labels)) == (mean, std)  # to the bit


def test_at_most_so_many_evenly_spaced() -> None:
    images = torch.arange(100, dtype=torch.uint8).reshape(-1, 1, 1, 1)
    pixels = InMemoryImages(images, torch.zeros(100, dtype=torch.int64))
    assert mean_and_std(pixels, most=4)[0] == pytest.approx([(0 + 25 + 50 + 75) / 4 / 255])
    assert mean_and_std(pixels, most=100)[0] == mean_and_std(pixels)[0] == pytest.approx([49.5 / 255])


@pytest.mark.parametrize("workers", [0, 2])
def test_files_and_a_constant_image(files: ImageFiles, workers: int) -> None:
    expected = reference(files.load(range(23))[0])
    np.testing.assert_allclose(mean_and_std(files, workers=workers), expected, rtol=1e-12)
    assert mean_and_std(files, most=1) == ((0.0, 0.0, 0.0), (1e-3, 1e-3, 1e-3))


def test_nothing_to_read(tmp_path: Path) -> None:
    missing = ImageFiles([tmp_path / "missing.png"], torch.tensor([0]), 8, on_error="skip")
    with pytest.raises(DataError, match="no mean can be computed: none of 1 images could be read"):
        mean_and_std(missing)
    with pytest.raises(DataError):
        mean_and_std(missing.subset(torch.zeros(0, dtype=torch.int64)))
