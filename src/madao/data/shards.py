"""Images in tar files."""

import os
from collections.abc import Sequence
from io import RawIOBase
from pathlib import Path
from typing import Self

import numpy as np
import torch
from torch import Tensor

from madao.data.image_formats import MAX_PIXELS, limit_bytes
from madao.data.lazy_images import LazyImages, OnError
from madao.data.shard_index import ShardIndex
from madao.files import open_regular

_OPEN = 64
"""Maximal number of open shards."""


class Shards(LazyImages):
    """Images in shards. The index of a shard gives random access to its images.

    WebDataset streams shards and shuffles them in a buffer. Its order depends on the number of workers, its epochs are
    not exact, and resuming within an epoch reads the first part again. Random access gives shards the same order,
    resume, splits and parts for several processes as all other data sets. It costs one pass over the headers of each
    shard, and many random reads of about a hundred kilobytes, which only hard disks are slow at.

    Args:
        indices: The index of each shard.
        side: Side of the squares in pixels.
        on_error: Whether an unreadable image raises a DataError ("stop") or is left out ("skip").
        samples: The samples to use, counted through all shards, int64 `[N]`. By default all.
        max_pixels: Largest number of pixels to decode. Larger images are decoded smaller or left out.
    """

    def __init__(
        self,
        indices: Sequence[ShardIndex],
        side: int,
        on_error: OnError = "stop",
        samples: Tensor | None = None,
        max_pixels: int = MAX_PIXELS,
    ) -> None:
        labels = torch.from_numpy(np.concatenate([index.labels for index in indices]))
        samples = torch.arange(len(labels)) if samples is None else samples
        super().__init__(labels[samples], len(samples), side, on_error, max_pixels)
        self.indices, self.samples = tuple(indices), samples
        self._ends = np.cumsum([len(index.labels) for index in indices])
        self._handles: dict[Path, RawIOBase] = {}
        self._owner = os.getpid()

    def read(self, index: int) -> bytes:
        """Return the encoded bytes of an image."""
        shard, row = self._place(index)
        size = int(shard.sizes[row])
        limit_bytes(size, self.max_pixels)
        stream = self._stream(shard.path)
        stream.seek(int(shard.offsets[row]))
        return stream.read(size) or b""

    def length(self, index: int) -> int:
        """Return the number of encoded bytes of an image."""
        shard, row = self._place(index)
        return int(shard.sizes[row])

    def name(self, index: int) -> str:
        """Return key and shard of an image for error messages."""
        shard, row = self._place(index)
        return shard.name(row)

    def subset(self, indices: Tensor) -> Self:
        """Return the images at `indices`."""
        return type(self)(self.indices, self.side, self.on_error, self.samples[indices], self.max_pixels)

    def _place(self, index: int) -> tuple[ShardIndex, int]:
        sample = int(self.samples[index])
        shard = int(np.searchsorted(self._ends, sample, side="right"))
        return self.indices[shard], sample - int(self._ends[shard]) + len(self.indices[shard].labels)

    def _stream(self, path: Path) -> RawIOBase:
        """Return an open shard. On a network disk, opening it for every image would take half of the reading time."""
        if self._owner != os.getpid():  # a forked worker must not share its parent's file position
            self._close()
            self._owner = os.getpid()
        stream = self._handles.pop(path, None)
        if stream is None:
            if len(self._handles) == _OPEN:
                self._handles.pop(next(iter(self._handles))).close()
            stream = open_regular(path).detach()  # unbuffered: whole images are read
        self._handles[path] = stream  # the least recently used shard is closed first
        return stream

    def _close(self) -> None:
        for stream in self._handles.values():
            stream.close()
        self._handles = {}

    def __del__(self) -> None:
        if hasattr(self, "_handles"):
            self._close()

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_handles": {}}
