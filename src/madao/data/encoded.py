"""Images that are decoded when asked for, wherever their bytes lie."""

import abc
import contextlib
from collections.abc import Sequence
from typing import Literal, Self

import torch
from torch import Tensor

from madao.data.decoding import decode, jpeg_decoder
from madao.data.images import InMemoryImages, check_labels
from madao.data.loading import load_batches
from madao.errors import DataError

OnError = Literal["stop", "skip"]


class LazyImages(abc.ABC):
    """Images as RGB squares: cut to the middle, then scaled.

    Args:
        labels: int64 `[N]`.
        count: N, the number of images.
        side: Side of the square.
        on_error: What an image that cannot be read does: stop with an error that names it, or be left out.
    """

    def __init__(self, labels: Tensor, count: int, side: int, on_error: OnError = "stop") -> None:
        if side < 1:
            raise DataError(f"the side of the images must be at least 1, got {side}")
        check_labels(labels, count)
        self.labels, self.side, self.on_error = labels, side, on_error
        with contextlib.suppress(ImportError):  # then Pillow decodes everything
            jpeg_decoder()

    @abc.abstractmethod
    def read(self, index: int) -> bytes:
        """The bytes of an image."""

    @abc.abstractmethod
    def name(self, index: int) -> str:
        """What an image is called in errors."""

    @abc.abstractmethod
    def subset(self, indices: Tensor) -> Self:
        """The images at `indices` only."""

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
        """Decode the images at `indices`; what cannot be read is left out, or an error."""
        images = torch.empty(len(indices), *self.shape, dtype=torch.uint8)
        readable: list[int] = []
        for position, index in enumerate(indices):
            decoded = self.decoded(index)
            if decoded is not None:
                images[len(readable)] = decoded
                readable.append(position)
        return images[: len(readable)], readable

    def decoded(self, index: int) -> Tensor | None:
        """One image, uint8 `[3, side, side]`; None where it cannot be read and that is no error."""
        try:
            return decode(self.read(index), self.side)
        except Exception as error:  # Pillow's readers raise what they stumble on
            self.refuse(index, error)
            return None

    def refuse(self, index: int, error: Exception) -> None:
        """Say that an image cannot be read, unless such images are left out."""
        if self.on_error == "stop":
            reason = " ".join(str(error).split())
            raise DataError(
                f"cannot read {self.name(index)} as an image ({reason}); replace or remove it, or leave out all such "
                "files with --data.on_error skip"
            ) from None

    def decode_all(self, workers: int = 0) -> tuple[InMemoryImages, list[str]]:
        """Decode every image once, into memory.

        Args:
            workers: How many processes decode; 0: this one.

        Returns:
            The images that could be read, and the names of those that could not.
        """
        images = torch.empty(len(self), *self.shape, dtype=torch.uint8)
        batches = [batch.tolist() for batch in torch.arange(len(self)).split(64)] if len(self) else []
        readable: list[int] = []
        for batch, (loaded, positions) in zip(batches, load_batches(self.load, batches, workers), strict=True):
            images[len(readable) : len(readable) + len(loaded)] = loaded
            readable += [batch[position] for position in positions]
        skipped = sorted(set(range(len(self))) - set(readable))
        return InMemoryImages(images[: len(readable)], self.labels[readable]), [self.name(index) for index in skipped]
