"""Data sets of torch as images of madao."""

from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import TensorDataset

from madao.data.torch_dataset import TorchDatasetImages, read_labels, shape_of, to_uint8
from madao.errors import DataError

PIXELS = torch.randint(0, 256, (6, 3, 8, 8), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
LABELS = torch.tensor([0, 1, 2, 0, 1, 2])


class Pairs:
    """Pairs of an image in one of the usual forms, and a label."""

    def __init__(self, form: str, labels: Any = LABELS) -> None:
        self.form, self.labels = form, labels

    def __len__(self) -> int:
        return len(PIXELS)

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        image = PIXELS[index]
        array = image.permute(1, 2, 0).numpy()
        forms = {"tensor": image, "float": image / 255, "array": array, "pil": Image.fromarray(array)}
        return forms[self.form], self.labels[index]


@pytest.mark.parametrize("form", ["tensor", "float", "array", "pil"])
def test_every_form_gives_the_same_images(form: str) -> None:
    images = TorchDatasetImages(Pairs(form), read_labels(Pairs(form), "data"), side=8)
    loaded, positions = images.load([4, 0])
    assert torch.equal(loaded, PIXELS[[4, 0]])
    assert positions == [0, 1]
    assert images.labels.tolist() == LABELS.tolist()
    assert shape_of(Pairs(form), "data") == (3, 8)


def test_subsets_keep_images_with_their_labels() -> None:
    images = (
        TorchDatasetImages(Pairs("tensor"), LABELS, side=8).subset(torch.tensor([5, 3, 1])).subset(torch.tensor([2, 0]))
    )
    decoded, lost = images.decode_all()
    assert torch.equal(decoded.images, PIXELS[[1, 5]])
    assert decoded.labels.tolist() == [1, 2]
    assert lost == []


def test_large_images_are_cropped_to_the_centre_and_resized() -> None:
    wide = torch.zeros(1, 3, 80, 160, dtype=torch.uint8)
    wide[..., 40:120] = 200
    dataset = TensorDataset(wide, torch.tensor([0]))
    assert shape_of(dataset, "data") == (3, None)
    assert torch.equal(
        TorchDatasetImages(dataset, LABELS[:1], side=20).load([0])[0], torch.full((1, 3, 20, 20), 200).to(torch.uint8)
    )


def test_channels_are_converted() -> None:
    grey = to_uint8(PIXELS[0], 1)
    pillow = np.asarray(Image.fromarray(PIXELS[0].permute(1, 2, 0).numpy()).convert("L")).astype(int)
    assert (grey[0].numpy().astype(int) - pillow).__abs__().max() <= 1
    assert torch.equal(to_uint8(grey, 3), grey.expand(3, -1, -1))
    assert shape_of(TensorDataset(PIXELS[:, :1], LABELS), "data") == (1, 8)


def test_labels_come_from_targets_without_reading_images() -> None:
    class Known(Pairs):
        targets = LABELS.tolist()

        def __getitem__(self, index: int) -> tuple[Any, Any]:
            raise AssertionError("an image was read")

    assert read_labels(Known("tensor"), "data").tolist() == LABELS.tolist()
    for labels in ([0, 1, 2, 0, 1, 2], np.array([0, 1, 2, 0, 1, 2]), LABELS[:, None]):
        assert read_labels(Pairs("tensor", labels), "data").tolist() == LABELS.tolist()


@pytest.mark.parametrize(
    "dataset",
    [
        iter([]),
        TensorDataset(PIXELS),
        Pairs("tensor", ["cat"] * 6),
        Pairs("tensor", [-1] * 6),
        Pairs("tensor", [0.5] * 6),
        TensorDataset(PIXELS[:0], LABELS[:0]),
    ],
    ids=["stream", "no label", "name", "negative", "float", "empty"],
)
def test_other_data_sets_are_refused(dataset: Any) -> None:
    with pytest.raises(DataError):
        read_labels(dataset, "data")


@pytest.mark.parametrize("image", [PIXELS[0] * 1.0, PIXELS[0] / 255 - 0.5, PIXELS[0].long(), PIXELS[0, :2], "a.jpg"])
def test_normalised_and_odd_images_are_refused(image: Tensor) -> None:
    with pytest.raises(DataError):
        to_uint8(image, 3)


def test_an_image_that_cannot_be_read_is_skipped_on_request() -> None:
    class Broken(Pairs):
        def __getitem__(self, index: int) -> tuple[Any, Any]:
            if index == 2:
                raise OSError("disk")
            return super().__getitem__(index)

    images = TorchDatasetImages(Broken("tensor"), LABELS, side=8, on_error="skip")
    assert [skipped.name for skipped in images.decode_all()[1]] == ["item 2 of the data set"]
    with pytest.raises(DataError, match="item 2 of the data set"):
        TorchDatasetImages(Broken("tensor"), LABELS, side=8).load([2])


def test_images_as_files_are_the_same_images() -> None:
    from madao.data.decoding import decode

    images = TorchDatasetImages(Pairs("pil"), LABELS, side=8)
    assert torch.equal(decode(images.read(3), 8), PIXELS[3])
