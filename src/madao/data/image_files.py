"""Images in files."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Self

from torch import Tensor

from madao.data.image_formats import MAX_PIXELS, limit_bytes
from madao.data.lazy_images import LazyImages, OnError
from madao.files import open_regular
from madao.text import printable


class ImageFiles(LazyImages):
    """Images in files, decoded on demand as RGB squares: cropped to the centre, then resized.

    Args:
        paths: The files.
        labels: int64 `[N]`.
        side: Side of the squares in pixels.
        on_error: Whether an unreadable file raises a DataError ("stop") or is left out ("skip").
        max_pixels: Largest number of pixels to decode. Larger images are decoded smaller or left out.
    """

    def __init__(
        self,
        paths: Sequence[Path],
        labels: Tensor,
        side: int,
        on_error: OnError = "stop",
        max_pixels: int = MAX_PIXELS,
    ) -> None:
        super().__init__(labels, len(paths), side, on_error, max_pixels)
        self.paths = tuple(paths)

    def read(self, index: int) -> bytes:
        """Return the bytes of a file."""
        return read_image(self.paths[index], self.max_pixels)

    def length(self, index: int) -> int:
        """Return the size of a file."""
        return self.paths[index].stat().st_size

    def name(self, index: int) -> str:
        """Return the path of a file, in one line."""
        return printable(self.paths[index])

    def subset(self, indices: Tensor) -> Self:
        """Return the files at `indices`."""
        chosen = [self.paths[index] for index in indices.tolist()]
        return type(self)(chosen, self.labels[indices], self.side, self.on_error, self.max_pixels)


def read_image(path: Path, max_pixels: int = MAX_PIXELS) -> bytes:
    """Return the bytes of an image file.

    Raises:
        OSError: The file cannot be opened, or is no regular file.
        ImageTooLargeError: The file is larger than any image of `max_pixels`.
    """
    with open_regular(path) as file:
        limit_bytes(os.fstat(file.fileno()).st_size, max_pixels)
        return file.read()
