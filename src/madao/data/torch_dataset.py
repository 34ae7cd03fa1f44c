"""Data sets of torch and torchvision as images of madao."""

import io
import math
from collections.abc import Sequence
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from madao.data.decoding import square
from madao.data.lazy_images import LazyImages, OnError
from madao.errors import DataError

_SMALL = 64
"""Largest side of images that are taken whole, in pixels. Larger ones are cropped and resized as image files are."""


class TorchDatasetImages(LazyImages):
    """The images of a data set that yields `(image, label)`, read on demand as squares.

    An image is a PIL image, an array `[H, W]` or `[H, W, C]` of uint8, or a tensor `[C, H, W]`, uint8 or float in
    [0, 1].

    Args:
        dataset: The data set. It must not augment or normalise: madao does both.
        labels: int64 `[N]`.
        side: Side of the squares in pixels.
        channels: 1 or 3. Colour images become grey for 1, grey ones become colour for 3.
        on_error: Whether an unreadable image raises a DataError ("stop") or is left out ("skip").
        indices: Indices of the images in the data set. By default all.
    """

    def __init__(
        self,
        dataset: Any,
        labels: Tensor,
        side: int,
        channels: int = 3,
        on_error: OnError = "stop",
        indices: Sequence[int] | None = None,
    ) -> None:
        super().__init__(labels, len(labels), side, on_error)
        self.dataset, self.channels = dataset, channels
        self.indices = range(len(labels)) if indices is None else indices

    @property
    def shape(self) -> tuple[int, int, int]:
        """Channels, height and width of each image."""
        return self.channels, self.side, self.side

    def decoded(self, index: int) -> Tensor | None:
        """Return an image, uint8 `[C, side, side]`, or None for an unreadable image that may be left out."""
        try:
            return square(to_uint8(self.dataset[self.indices[index]][0], self.channels), self.side)
        except Exception as error:  # a data set can raise anything
            self.refuse(index, error)
            return None

    def read(self, index: int) -> bytes:
        """Return an image as PNG, for decoders of files."""
        from PIL import Image

        array = to_uint8(self.dataset[self.indices[index]][0], 3).permute(1, 2, 0).numpy()
        file = io.BytesIO()
        Image.fromarray(array).save(file, "PNG")
        return file.getvalue()

    def length(self, index: int) -> int:
        """Return the number of decoded bytes: the encoded ones are not known without reading."""
        return math.prod(self.shape)

    def name(self, index: int) -> str:
        """Return the name of an image for error messages."""
        return f"item {self.indices[index]} of the data set"

    def subset(self, indices: Tensor) -> Self:
        """Return the images at `indices`."""
        chosen = [self.indices[index] for index in indices.tolist()]
        return type(self)(self.dataset, self.labels[indices], self.side, self.channels, self.on_error, chosen)


def read_labels(dataset: Any, name: str) -> Tensor:
    """Return the label of each item, int64 `[N]`: from the attribute `targets`, or by reading every item.

    Args:
        dataset: A data set that yields `(image, label)`.
        name: The name of the argument that holds it, for messages.

    Raises:
        DataError: The data set has no length, or its items are not pairs of an image and a class number.
    """
    if not hasattr(dataset, "__len__") or not hasattr(dataset, "__getitem__"):
        raise DataError(
            f"{name} must be a folder or a data set with a length, got {type(dataset).__name__}; read a stream into a "
            "folder, or an .npz file, first"
        )
    known = getattr(dataset, "targets", None)
    if isinstance(known, Tensor | np.ndarray | list | tuple) and len(known) == len(dataset):
        labels = [*known]
    else:
        items = (dataset[index] for index in range(len(dataset)))
        labels = [_pair(item, name)[1] for item in items]
    numbers = [_class_number(label, name) for label in labels]
    if not numbers:
        raise DataError(f"{name} is an empty data set; expected at least one image")
    return torch.tensor(numbers)


def shape_of(dataset: Any, name: str) -> tuple[int, int | None]:
    """Return the channels of a data set's images, and their side if they are small squares; else None."""
    image, _ = _pair(dataset[0], name)
    channels, height, width = _pixels(image).shape
    return channels, height if height == width <= _SMALL else None


def to_uint8(image: Any, channels: int) -> Tensor:
    """Return an image as uint8 `[C, H, W]` with 1 or 3 channels."""
    pixels = _pixels(image)
    if pixels.dtype != torch.uint8:
        low, high = float(pixels.min()), float(pixels.max())
        if not (low >= 0 and high <= 1):
            raise DataError(
                f"expected uint8 or floats in [0, 1], got {pixels.dtype} from {low:.3g} to {high:.3g}; leave "
                "normalising to madao"
            )
        pixels = (255 * pixels).round().to(torch.uint8)
    if len(pixels) == channels:
        return pixels
    if channels == 3:
        return pixels.expand(3, -1, -1)
    weights = torch.tensor([0.299, 0.587, 0.114]).reshape(3, 1, 1)
    return (pixels * weights).sum(0, keepdim=True).round().to(torch.uint8)


def _pair(item: Any, name: str) -> tuple[Any, Any]:
    if not isinstance(item, tuple | list) or len(item) < 2:
        raise DataError(f"an item of {name} must be (image, label), got {type(item).__name__}")
    return item[0], item[1]


def _class_number(label: Any, name: str) -> int:
    arrays = (Tensor, np.ndarray, np.generic)
    number = label.item() if isinstance(label, arrays) and len(label.reshape(-1)) == 1 else label
    if isinstance(number, bool) or not isinstance(number, int) or number < 0:
        raise DataError(f"a label of {name} must be a class number from 0, got {label!r}")
    return number


def _pixels(image: Any) -> Tensor:
    """Return an image as `[C, H, W]` with 1 or 3 channels, of its own type."""
    if isinstance(image, Tensor):
        pixels = image[None] if image.ndim == 2 else image
    elif isinstance(image, np.ndarray):
        pixels = torch.from_numpy(image.reshape(*image.shape[:2], -1).copy()).permute(2, 0, 1)
    elif hasattr(image, "convert"):
        array = np.array(image if image.mode == "L" else image.convert("RGB"))
        pixels = torch.from_numpy(array.reshape(*array.shape[:2], -1)).permute(2, 0, 1)
    else:
        raise DataError(f"an image must be a PIL image, an array or a tensor, got {type(image).__name__}")
    if pixels.ndim != 3 or len(pixels) not in (1, 3) or not (pixels.dtype == torch.uint8 or pixels.is_floating_point()):
        raise DataError(
            f"an image must be uint8 or float with 1 or 3 channels, got {pixels.dtype} {list(pixels.shape)}"
        )
    return pixels
