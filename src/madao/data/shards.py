"""Images in tar files, each read from where it lies."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO, Self

import numpy as np
import torch
from torch import Tensor

from madao.data.encoded import LazyImages, OnError
from madao.data.shardindex import ShardIndex

_OPEN = 64
"""Most shards that are open at a time."""


class Shards(LazyImages):
    """Images in shards. A shard that was indexed is as good as a folder: any image is one seek away.

    WebDataset streams shards instead, and shuffles what passes by in a buffer: an order that depends on the number of
    workers, epochs that are not quite whole, and no way to resume in their midst but to read again what was seen. Here
    order, resume, parts for several processes and stratified splits are those of any data set. The price is one look at
    the headers of each shard, and reads of a hundred kilobytes at random places, many at a time, which is what disks
    other than turning ones are about as good at.

    Args:
        indices: One a shard.
        side: Side of the square.
        on_error: What an image that cannot be read does: stop with an error that names it, or be left out.
        samples: Which of their samples, counted through all shards, int64 `[N]`. By default all.
    """

    def __init__(
        self, indices: Sequence[ShardIndex], side: int, on_error: OnError = "stop", samples: Tensor | None = None
    ) -> None:
        labels = torch.from_numpy(np.concatenate([index.labels for index in indices]))
        samples = torch.arange(len(labels)) if samples is None else samples
        super().__init__(labels[samples], len(samples), side, on_error)
        self.indices, self.samples = tuple(indices), samples
        self._ends = np.cumsum([len(index.labels) for index in indices])
        self._handles: dict[Path, BinaryIO] = {}
        self._owner = os.getpid()

    def read(self, index: int) -> bytes:
        """The bytes of an image."""
        shard, row = self._place(index)
        stream = self._stream(shard.path)
        stream.seek(int(shard.offsets[row]))
        return stream.read(int(shard.sizes[row]))

    def name(self, index: int) -> str:
        """Key and shard of an image."""
        shard, row = self._place(index)
        return shard.name(row)

    def subset(self, indices: Tensor) -> Self:
        """The images at `indices` only."""
        return type(self)(self.indices, self.side, self.on_error, self.samples[indices])

    def _place(self, index: int) -> tuple[ShardIndex, int]:
        sample = int(self.samples[index])
        shard = int(np.searchsorted(self._ends, sample, side="right"))
        return self.indices[shard], sample - int(self._ends[shard]) + len(self.indices[shard].labels)

    def _stream(self, path: Path) -> BinaryIO:
        """The shard, open; on a network disk opening it again for every image would be half of the reading."""
        if self._owner != os.getpid():  # a worker shares its parent's position in the file, until it has its own
            self._close()
            self._owner = os.getpid()
        stream = self._handles.pop(path, None)
        if stream is None:
            if len(self._handles) == _OPEN:
                self._handles.pop(next(iter(self._handles))).close()
            stream = path.open("rb", buffering=0)
        self._handles[path] = stream  # the last one used is the last to be closed
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
