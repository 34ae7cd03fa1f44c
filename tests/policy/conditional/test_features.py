"""The features of an image, compared with their definitions."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from sklearn.datasets import load_sample_images
from torch import Tensor

from madao.policy.conditional.features import GRID, KINDS, NAMES, THUMB, features


def within(area: int, side: int) -> list[int]:
    """The pixels of a side whose centres lie in one of the thumbnail's areas; or the one about its centre."""
    found = [x for x in range(side) if area * side < (x + 0.5) * THUMB <= (area + 1) * side]
    return found or [int((area + 0.5) * side / THUMB)]


def by_hand(image: np.ndarray) -> list[float]:
    """Compute the features of one image `[C, H, W]` in [0, 1], pixel by pixel."""
    image = image if len(image) == 3 else np.repeat(image, 3, 0)
    found = [plane.mean() for plane in image] + [plane.std() for plane in image]
    luma = 0.299 * image[0] + 0.587 * image[1] + 0.114 * image[2]
    height, width = luma.shape
    thumb = np.zeros((THUMB, THUMB))
    for y in range(THUMB):
        for x in range(THUMB):
            thumb[y, x] = luma[np.ix_(within(y, height), within(x, width))].mean()
    across = [abs(thumb[y, x + 1] - thumb[y, x]) for y in range(THUMB) for x in range(THUMB - 1)]
    down = [abs(thumb[y + 1, x] - thumb[y, x]) for y in range(THUMB - 1) for x in range(THUMB)]
    found += [np.mean(changes) for changes in (across, down)]
    side = THUMB // GRID
    for row in range(0, THUMB, side):
        for column in range(0, THUMB, side):
            found.append(thumb[row : row + side, column : column + side].mean() - thumb.mean())
    return found


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("size", [(32, 48), (8, 8), (37, 21), (5, 11), (1, 6), (1, 1)])
def test_features_match_their_definitions(channels: int, size: tuple[int, int]) -> None:
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


def test_features_differ_from_each_other() -> None:
    def one(image: Tensor) -> dict[str, float]:
        return dict(zip(NAMES, features(image[None])[0].tolist(), strict=True))

    left = torch.zeros(3, 32, 32)
    left[:, :, :16] = 1
    assert one(left)["change from left to right"] == pytest.approx(1 / 15)
    assert one(left)["change from top to bottom"] == 0
    assert one(left)["patch 1, 1"] == pytest.approx(0.5)
    assert one(left)["patch 3, 4"] == pytest.approx(-0.5)
    red = torch.zeros(3, 8, 8)
    red[0] = 1
    assert [one(red)[f"mean of {channel}"] for channel in ("red", "green", "blue")] == [1, 0, 0]
    assert len(set(NAMES)) == len(NAMES) == sum(KINDS)


def test_an_image_has_nearly_the_same_at_every_size() -> None:
    photographs = np.stack(load_sample_images().images)[:, :384, :384]
    large = torch.from_numpy(photographs).permute(0, 3, 1, 2).float() / 255
    expected = features(large)
    for side in (32, 96, 224):
        small = F.interpolate(large, size=(side, side), mode="bilinear", antialias=True)
        found = (features(small) - expected).abs()
        assert found[:, 3:6].max() < 0.05  # what is averaged differs less
        assert found[:, 6:].max() < 0.02
        assert found[:, :3].max() < 0.001
    assert (expected[0] - expected[1]).abs().max() > 0.1


def test_no_gradient_and_no_image() -> None:
    assert not features(torch.rand(2, 3, 8, 8, requires_grad=True)).requires_grad
    assert features(torch.rand(0, 3, 8, 8)).shape == (0, len(NAMES))
