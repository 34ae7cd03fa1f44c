"""Batches in a reproducible order, so that a run can resume at any of them."""

import hashlib
import itertools
from collections.abc import Iterable, Iterator

import torch
from torch import Tensor

from madao.data.gpu_decode import GpuDecodedImages
from madao.data.images import Images
from madao.data.in_memory_images import InMemoryImages
from madao.data.lazy_images import LazyImages
from madao.data.loading import load_batches
from madao.errors import DataError


class Batches:
    """An endless, reproducible sequence of batches on a device.

    Seed, epoch and position alone decide which images a batch holds. `len(batches)` is the number of batches in an
    epoch. Images in memory are moved to the device once.

    Args:
        images: The images to batch.
        batch_size: Images per batch. With fewer images in total, a batch holds all of them.
        device: The device that batches are moved to.
        seed: Seed of the orders.
        shuffle: Whether each epoch draws a random order. Otherwise the images keep their order.
        drop_last: Whether to leave out the images at the end of an epoch that do not fill a batch.
        workers: Number of processes that read images from files. 0 reads in this process.
        rank: Index of the part of each batch to return, for training on several devices. The first parts are one image
            larger if the batch size is not divisible by `world`.
        world: Number of parts that a batch is divided into.

    Example:
        >>> batches = Batches(images, 128, torch.device("cuda"), seed=0)
        >>> for epoch in range(10):
        ...     for inputs, targets in batches.epoch(epoch): ...
    """

    def __init__(
        self,
        images: Images,
        batch_size: int,
        device: torch.device,
        seed: int = 0,
        *,
        shuffle: bool = True,
        drop_last: bool = True,
        workers: int = 0,
        rank: int = 0,
        world: int = 1,
    ) -> None:
        if batch_size < 1:
            raise DataError(f"batch_size must be at least 1, got {batch_size}")
        if len(images) == 0:
            raise DataError("there are no images to batch")
        self.images, self.device, self.workers = images, device, workers
        self.seed, self.shuffle, self.drop_last = seed, shuffle, drop_last
        self.batch_size = min(batch_size, len(images))
        self.rank, self.world = rank, world
        self._resident: tuple[Tensor, Tensor] | None = None
        if isinstance(images, InMemoryImages):
            self._resident = images.images.to(device), images.targets.to(device)

    def __len__(self) -> int:
        whole, rest = divmod(len(self.images), self.batch_size)
        return whole + (rest > 0 and not self.drop_last)

    def order(self, number: int) -> Tensor:
        """Return the indices of all images in the order of epoch `number`. `drop_last` leaves out the last ones."""
        if not self.shuffle:
            return torch.arange(len(self.images))
        digest = hashlib.blake2b(f"{self.seed} {number}".encode(), digest_size=8).digest()
        generator = torch.Generator().manual_seed(int.from_bytes(digest, "big", signed=True))
        return torch.randperm(len(self.images), generator=generator)

    def epoch(self, number: int, start: int = 0) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield the batches of epoch `number` from batch `start` on: uint8 images and targets."""
        return self._read(self._parts(self._indices(number, start)))

    def stream(self, start: int = 0) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield the batches of all epochs without end. `start` counts from the first batch of epoch 0."""
        first, position = divmod(start, len(self))
        epochs = (self._indices(number, position if number == first else 0) for number in itertools.count(first))
        return self._read(self._parts(itertools.chain.from_iterable(epochs)))

    def _parts(self, batches: Iterable[Tensor]) -> Iterator[Tensor]:
        parts = (indices.tensor_split(self.world)[self.rank] for indices in batches)
        return (part for part in parts if len(part))

    def _indices(self, number: int, start: int) -> Iterable[Tensor]:
        batches: tuple[Tensor, ...] = self.order(number).split(self.batch_size)
        return batches[start : len(self)]

    def _read(self, batches: Iterable[Tensor]) -> Iterator[tuple[Tensor, Tensor]]:
        if self._resident is None:
            return self._load(batches)
        return self._gather(batches, *self._resident)

    def _gather(self, batches: Iterable[Tensor], images: Tensor, targets: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        for indices in batches:
            here = indices.to(self.device)
            yield images[here], targets[here]

    def _load(self, batches: Iterable[Tensor]) -> Iterator[tuple[Tensor, Tensor]]:
        # The loader reads ahead, so a second copy of the indices waits for its images.
        ahead, behind = itertools.tee(batches)
        for indices, (images, positions) in zip(behind, self._decode(ahead), strict=True):
            if len(positions) < len(indices) and isinstance(self.images, LazyImages | GpuDecodedImages):
                self.images.skipped.update(set(indices.tolist()) - set(indices[positions].tolist()))
            if positions:
                targets = self.images.targets[indices[positions]]
                yield images.to(self.device, non_blocking=True), targets.to(self.device)
            # A few bad files are skipped. A whole batch of them means that the disk is gone.
            elif len(indices) > 1 or (self.world > 1 and self.drop_last):
                raise DataError(
                    f"none of the {len(indices)} images of a batch could be read; check that their disk is mounted"
                )

    def _decode(self, batches: Iterable[Tensor]) -> Iterator[tuple[Tensor, list[int]]]:
        lists = (indices.tolist() for indices in batches)
        if isinstance(self.images, GpuDecodedImages):
            return map(self.images.unpack, load_batches(self.images.pack, lists, self.workers))
        return load_batches(self.images.load, lists, self.workers, pin_memory=self.device.type == "cuda")
