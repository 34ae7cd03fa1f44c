"""Images in files, decoded when asked for."""

from collections.abc import Sequence
from pathlib import Path
from typing import Self

from torch import Tensor

from madao.data.encoded import LazyImages, OnError


class ImageFiles(LazyImages):
    """Images in files, as RGB squares: cut to the middle, then scaled.

    Args:
        paths: The files.
        labels: int64 `[N]`.
        side: Side of the square.
        on_error: What a file that cannot be read does: stop with an error that names it, or be left out.
    """

    def __init__(self, paths: Sequence[Path], labels: Tensor, side: int, on_error: OnError = "stop") -> None:
        super().__init__(labels, len(paths), side, on_error)
        self.paths = tuple(paths)

    def read(self, index: int) -> bytes:
        """The bytes of a file."""
        return self.paths[index].read_bytes()

    def name(self, index: int) -> str:
        """The path of a file."""
        return str(self.paths[index])

    def subset(self, indices: Tensor) -> Self:
        """The files at `indices` only."""
        chosen = [self.paths[index] for index in indices.tolist()]
        return type(self)(chosen, self.labels[indices], self.side, self.on_error)
