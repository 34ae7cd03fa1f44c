"""Images in files."""

from collections.abc import Sequence
from pathlib import Path
from typing import Self

from torch import Tensor

from madao.data.lazy_images import LazyImages, OnError


class ImageFiles(LazyImages):
    """Images in files, decoded on demand as RGB squares: cropped to the centre, then resized.

    Args:
        paths: The files.
        labels: int64 `[N]`.
        side: Side of the squares in pixels.
        on_error: Whether an unreadable file raises a DataError ("stop") or is left out ("skip").
    """

    def __init__(self, paths: Sequence[Path], labels: Tensor, side: int, on_error: OnError = "stop") -> None:
        super().__init__(labels, len(paths), side, on_error)
        self.paths = tuple(paths)

    def read(self, index: int) -> bytes:
        """Return the bytes of a file."""
        return self.paths[index].read_bytes()

    def length(self, index: int) -> int:
        """Return the size of a file."""
        return self.paths[index].stat().st_size

    def name(self, index: int) -> str:
        """Return the path of a file."""
        return str(self.paths[index])

    def subset(self, indices: Tensor) -> Self:
        """Return the files at `indices`."""
        chosen = [self.paths[index] for index in indices.tolist()]
        return type(self)(chosen, self.labels[indices], self.side, self.on_error)
