"""The files that a run writes about its images."""

import io

import numpy as np
import torch

from madao.data import InMemoryImages
from madao.policy import BaseAugmentation
from madao.training.run.artifacts import choose_samples, sample_archive


def test_classes_take_turns_among_the_samples() -> None:
    assert choose_samples(torch.tensor([2, 2, 0, 2, 0, 1]), 5) == [2, 5, 0, 4, 1]
    assert choose_samples(torch.tensor([0, 0, 0])) == [0, 1, 2]


def test_samples_are_cropped_for_the_model() -> None:
    images = torch.arange(4 * 3 * 6 * 6).reshape(4, 3, 6, 6).to(torch.uint8)
    pixels = InMemoryImages(images, torch.tensor([1, 1, 0, 2]))
    with np.load(io.BytesIO(sample_archive(pixels, BaseAugmentation(size=4)))) as found:
        assert found["labels"].tolist() == [0, 1, 2, 1]
        assert np.array_equal(found["images"], images[[2, 0, 3, 1], :, 1:5, 1:5].numpy())
