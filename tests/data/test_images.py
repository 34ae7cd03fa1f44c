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


def test_mistakes() -> None:
    images, labels = torch.zeros(4, 3, 8, 8, dtype=torch.uint8), torch.zeros(4, dtype=torch.int64)
    for wrong in (images.float(), images[0], images[:, :2]):
        with pytest.raises(DataError, match=r"images must be uint8 .* of 1 or 3 channels, got torch"):
            InMemoryImages(wrong, labels)
    with pytest.raises(DataError, match=r"labels must be int64 \[N\], got torch.float32 \[4\]"):
        InMemoryImages(images, labels.float())
    with pytest.raises(DataError, match=r"labels must be int64 \[N\], got torch.int64 \[4, 1\]"):
        InMemoryImages(images, labels[:, None])
    with pytest.raises(DataError, match="one label per image, got 3 labels for 4 images"):
        InMemoryImages(images, labels[:3])
    with pytest.raises(DataError, match="labels must count from 0, got -1"):
        InMemoryImages(images, labels - 1)
