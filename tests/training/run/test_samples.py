import io

import numpy as np
import torch

from madao.data import InMemoryImages
from madao.policy import BaseAugmentation
from madao.training.run.samples import archive, choose


def test_classes_take_turns() -> None:
    assert choose(torch.tensor([2, 2, 0, 2, 0, 1]), 5) == [2, 5, 0, 4, 1]
    assert choose(torch.tensor([0, 0, 0]), 8) == [0, 1, 2]


def test_the_archive_holds_what_the_model_sees() -> None:
    images = torch.arange(4 * 3 * 6 * 6).reshape(4, 3, 6, 6).to(torch.uint8)
    pixels = InMemoryImages(images, torch.tensor([1, 1, 0, 2]))
    with np.load(io.BytesIO(archive(pixels, BaseAugmentation(size=4)))) as found:
        assert found["labels"].tolist() == [0, 1, 2, 1]
        assert np.array_equal(found["images"], images[[2, 0, 3, 1], :, 1:5, 1:5].numpy())
