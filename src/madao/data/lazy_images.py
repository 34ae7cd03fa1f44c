"""Images that are decoded on demand."""

import abc
import contextlib
import dataclasses
from collections.abc import Sequence
from typing import Literal, Self

import torch
from torch import Tensor

from madao.data.decoding import decode, jpeg_decoder
from madao.data.image_formats import MAX_PIXELS, ImageTooLargeError
from madao.data.images import check_labels
from madao.data.in_memory_images import InMemoryImages
from madao.data.loading import load_batches
from madao.errors import DataError
from madao.text import printable

OnError = Literal["stop", "skip"]


@dataclasses.dataclass(frozen=True, order=True)
class SkippedImage:
    """An image, or a folder of images, that could not be read and was left out.

    Attributes:
        name: Path of the file, or key and shard, in one line.
        reason: The error, in one line.
    """

    name: str
    reason: str


class LazyImages(abc.ABC):
    """Images that are decoded on demand as RGB squares: cropped to the centre, then resized.

    Subclasses override `read`, `length`, `name` and `subset`, which define where the bytes are.

    Args:
        labels: int64 `[N]`.
        count: N, the number of images.
        side: Side of the squares in pixels.
        on_error: Whether an unreadable image raises a DataError ("stop") or is left out ("skip").
        max_pixels: Largest number of pixels to decode. Larger images are decoded smaller or left out.

    Attributes:
        skipped: Indices of the images that batches left out so far.
    """

    def __init__(
        self, labels: Tensor, count: int, side: int, on_error: OnError = "stop", max_pixels: int = MAX_PIXELS
    ) -> None:
        if side < 1:
            raise DataError(f"side must be at least 1, got {side}")
        check_labels(labels, count)
        self.labels, self.side, self.on_error, self.max_pixels = labels, side, on_error, max_pixels
        self.skipped: set[int] = set()
        with contextlib.suppress(ImportError):  # Pillow decodes everything then
            jpeg_decoder()

    @abc.abstractmethod
    def read(self, index: int) -> bytes:
        """Return the encoded bytes of an image."""

    @abc.abstractmethod
    def length(self, index: int) -> int:
        """Return the number of encoded bytes of an image, without reading them."""

    @abc.abstractmethod
    def name(self, index: int) -> str:
        """Return the name of an image for error messages."""

    @abc.abstractmethod
    def subset(self, indices: Tensor) -> Self:
        """Return the images at `indices`."""

    @property
    def shape(self) -> tuple[int, int, int]:
        """Channels, height and width of each image."""
        return 3, self.side, self.side

    @property
    def targets(self) -> Tensor:
        """The labels."""
        return self.labels

    def __len__(self) -> int:
        return len(self.labels)

    def load(self, indices: Sequence[int]) -> tuple[Tensor, list[int]]:
        """Decode the images at `indices`. Unreadable images raise a DataError or are left out, by `on_error`."""
        images = torch.empty(len(indices), *self.shape, dtype=torch.uint8)
        readable: list[int] = []
        for position, index in enumerate(indices):
            decoded = self.decoded(index)
            if decoded is not None:
                images[len(readable)] = decoded
                readable.append(position)
        return images[: len(readable)], readable

    def decoded(self, index: int) -> Tensor | None:
        """Return an image, uint8 `[3, side, side]`, or None for an unreadable image that may be left out."""
        try:
            return decode(self.read(index), self.side, self.max_pixels)
        except Exception as error:  # Pillow raises errors of many types
            self.refuse(index, error)
            return None

    def refuse(self, index: int, error: Exception) -> None:
        """Raise a DataError about an unreadable image, unless it is left out. Images that are too large always are."""
        if self.on_error == "stop" and not isinstance(error, ImageTooLargeError):
            raise DataError(
                f"cannot read {self.name(index)} as an image ({_reason(error)}); replace or remove it, or skip such "
                "files with `data.on_error=skip`"
            ) from None

    def describe_skipped(self, index: int) -> SkippedImage:
        """Return name and error of an image that was left out. It is read again, since workers return no errors."""
        reason = "it could not be read at first"
        try:
            decode(self.read(index), self.side, self.max_pixels)
        except Exception as error:  # Pillow raises errors of many types
            reason = _reason(error)
        return SkippedImage(self.name(index), reason)

    def decode_all(self, workers: int = 0) -> tuple[InMemoryImages, list[SkippedImage]]:
        """Decode all images into memory.

        Args:
            workers: Number of processes that decode. 0 decodes in this process.

        Returns:
            The readable images, and the unreadable ones.
        """
        images = torch.empty(len(self), *self.shape, dtype=torch.uint8)
        batches = [batch.tolist() for batch in torch.arange(len(self)).split(64)] if len(self) else []
        readable: list[int] = []
        for batch, (loaded, positions) in zip(batches, load_batches(self.load, batches, workers), strict=True):
            images[len(readable) : len(readable) + len(loaded)] = loaded
            readable += [batch[position] for position in positions]
        skipped = sorted(set(range(len(self))) - set(readable))
        decoded = InMemoryImages(images[: len(readable)], self.labels[readable])
        return decoded, [self.describe_skipped(index) for index in skipped]


def _reason(error: Exception) -> str:
    return printable(" ".join(str(error).split()) or type(error).__name__, limit=300)
