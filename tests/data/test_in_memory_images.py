"""Images in memory."""

import pytest
import torch
from torch import Tensor
from torchvision.transforms import functional as TF

from madao.data import InMemoryImages
from madao.errors import DataError


def test_load_and_subset(crops: Tensor) -> None:
    pixels = InMemoryImages(crops, torch.arange(16))
    assert len(pixels) == 16
    assert pixels.shape == (3, 32, 40)
    images, readable = pixels.load([5, 2])
    assert torch.equal(images, crops[[5, 2]])
    assert readable == [0, 1]
    assert pixels.load([])[0].shape == (0, 3, 32, 40)
    part = pixels.subset(torch.tensor([7, 1]))
    assert torch.equal(part.images, crops[[7, 1]])
    assert part.labels.tolist() == [7, 1]


def test_resized_is_torchvisions_resize_of_the_middle(crops: Tensor) -> None:
    pixels = InMemoryImages(crops, torch.arange(16))
    for side in (16, 50):
        resized = pixels.resized(side)
        expected = TF.resize(TF.center_crop(crops, [32, 32]), [side, side], antialias=True)
        assert resized.shape == (3, side, side)
        assert (resized.images.int() - expected.int()).abs().max() <= 1
    assert torch.equal(resized.labels, pixels.labels)
    assert pixels.resized(None) is pixels
    square = pixels.resized(16)
    assert square.resized(16) is square
    tall = InMemoryImages(crops.transpose(2, 3), torch.arange(16)).resized(16)
    assert (tall.images.transpose(2, 3).int() - square.images.int()).abs().max() <= 1

    corner = InMemoryImages(torch.tensor([[[[0, 1], [1, 1]]]], dtype=torch.uint8), torch.tensor([0]))
    assert corner.resized(1).images.item() == 1  # 0.75, rounded


IMAGES, LABELS = torch.zeros(4, 3, 8, 8, dtype=torch.uint8), torch.zeros(4, dtype=torch.int64)


@pytest.mark.parametrize(
    ("images", "labels", "message"),
    [
        (IMAGES.float(), LABELS, r"images must be uint8 .* 1 or 3 channels, got torch.float32"),
        (IMAGES[0], LABELS, r"\[3, 8, 8\]"),
        (IMAGES[:, :2], LABELS, r"\[4, 2, 8, 8\]"),
        (IMAGES, LABELS.float(), r"labels must be int64 \[N\], got torch.float32 \[4\]"),
        (IMAGES, LABELS[:, None], r"\[4, 1\]"),
        (IMAGES, LABELS[:3], "one label per image, got 3 labels for 4 images"),
        (IMAGES, LABELS - 1, "labels must count from 0, got -1"),
    ],
)
def test_mistakes(images: Tensor, labels: Tensor, message: str) -> None:
    with pytest.raises(DataError, match=message):
        InMemoryImages(images, labels)


def test_masks_have_the_size_of_their_images() -> None:
    with pytest.raises(DataError, match=r"masks must be uint8 \[4, 8, 8\], got torch.uint8 \[4, 8, 4\]"):
        InMemoryImages(IMAGES, LABELS, torch.zeros(4, 8, 4, dtype=torch.uint8))
