"""What a policy sees of an image, against the definitions written out."""

import numpy as np
import pytest
import torch
from torch import Tensor

from madao.policy.features import GRID, NAMES, features


def by_hand(image: np.ndarray) -> list[float]:
    """Of one image `[C, H, W]` in [0, 1], pixel by pixel."""
    image = image if len(image) == 3 else np.repeat(image, 3, 0)
    found = [plane.mean() for plane in image] + [plane.std() for plane in image]
    luma = 0.299 * image[0] + 0.587 * image[1] + 0.114 * image[2]
    height, width = luma.shape
    across = [abs(luma[y, x + 1] - luma[y, x]) for y in range(height) for x in range(width - 1)]
    down = [abs(luma[y + 1, x] - luma[y, x]) for y in range(height - 1) for x in range(width)]
    found += [np.mean(changes) if changes else 0.0 for changes in (across, down)]
    for row in range(GRID):
        for column in range(GRID):
            top, bottom = row * height // GRID, -(-(row + 1) * height // GRID)
            left, right = column * width // GRID, -(-(column + 1) * width // GRID)
            found.append(luma[top:bottom, left:right].mean() - luma.mean())
    return found


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("size", [(8, 8), (5, 11), (2, 3), (1, 6), (1, 1)])
def test_they_are_what_they_are_called(channels: int, size: tuple[int, int]) -> None:
    images = torch.rand(3, channels, *size, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    found = features(images)
    assert found.dtype == torch.float64
    assert found.shape == (3, len(NAMES))
    expected = torch.tensor([by_hand(image.numpy()) for image in images], dtype=torch.float64)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


def test_levels_and_floats_are_the_same_image() -> None:
    levels = torch.randint(0, 256, (4, 3, 9, 7), dtype=torch.uint8)
    torch.testing.assert_close(features(levels), features(levels / 255), rtol=0, atol=1e-6)
    assert features(levels).dtype == torch.float32
    half = features((levels / 255).half())
    assert half.dtype == torch.float32
    torch.testing.assert_close(half, features(levels), rtol=0, atol=2e-3)


def test_each_says_something_of_its_own() -> None:
    def one(image: Tensor) -> dict[str, float]:
        return dict(zip(NAMES, features(image[None])[0].tolist(), strict=True))

    left = torch.zeros(3, 8, 8)
    left[:, :, :4] = 1
    assert one(left)["change from left to right"] == pytest.approx(1 / 7)
    assert one(left)["change from top to bottom"] == 0
    assert one(left)["patch 1, 1"] == pytest.approx(0.5)
    assert one(left)["patch 3, 4"] == pytest.approx(-0.5)
    red = torch.zeros(3, 8, 8)
    red[0] = 1
    assert [one(red)[f"mean of {channel}"] for channel in ("red", "green", "blue")] == [1, 0, 0]
    assert len(set(NAMES)) == len(NAMES)


def test_no_gradient_and_no_image() -> None:
    assert not features(torch.rand(2, 3, 8, 8, requires_grad=True)).requires_grad
    assert features(torch.rand(0, 3, 8, 8)).shape == (0, len(NAMES))
