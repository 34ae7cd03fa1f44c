"""Batches in an order that is known beforehand, so that a run can resume at any of them."""

import hashlib
import itertools
from collections.abc import Iterable, Iterator

import torch
from torch import Tensor

from madao.data.gpu_decode import GpuDecodedImages
from madao.data.images import Images, InMemoryImages
from madao.data.loading import load_batches
from madao.errors import DataError


class Batches:
    """Batches on a device: which images one holds follows from seed, epoch and position alone.

    `len(batches)` is the number of batches in an epoch. Images in memory are moved to the device once.

    Args:
        images: What to batch.
        batch_size: Images per batch. When there are fewer in all, a batch is all of them.
        device: Where batches go.
        seed: Which orders.
        shuffle: Whether each epoch has its own random order, or all have the images' own.
        drop_last: Whether the images that are left at an epoch's end and fill no batch are left out.
        workers: How many processes read images that are not in memory; 0: this one.
        rank: Which part of each batch is wanted, of `world` parts; the first ones have one image more where they must.
        world: How many parts a batch is divided into.

    Attributes:
        skipped: Indices of the images that could not be read and were left out of their batch.
    """

    def __init__(
        self,
        images: Images,
        batch_size: int,
        device: torch.device,
        seed: int = 0,
        shuffle: bool = True,
        drop_last: bool = True,
        workers: int = 0,
        rank: int = 0,
        world: int = 1,
    ) -> None:
        if batch_size < 1:
            raise DataError(f"a batch must have at least 1 image, got {batch_size}")
        if len(images) == 0:
            raise DataError("there are no images to batch")
        self.images, self.device, self.workers = images, device, workers
        self.seed, self.shuffle, self.drop_last = seed, shuffle, drop_last
        self.batch_size = min(batch_size, len(images))
        self.rank, self.world = rank, world
        self.skipped: set[int] = set()
        self._resident: tuple[Tensor, Tensor] | None = None
        if isinstance(images, InMemoryImages):
            self._resident = images.images.to(device), images.targets.to(device)

    def __len__(self) -> int:
        whole, rest = divmod(len(self.images), self.batch_size)
        return whole + (rest > 0 and not self.drop_last)

    def order(self, number: int) -> Tensor:
        """Every image's index, in the order of epoch `number`; what `drop_last` leaves out comes last."""
        if not self.shuffle:
            return torch.arange(len(self.images))
        digest = hashlib.blake2b(f"{self.seed} {number}".encode(), digest_size=8).digest()
        generator = torch.Generator().manual_seed(int.from_bytes(digest, "big", signed=True))
        return torch.randperm(len(self.images), generator=generator)

    def epoch(self, number: int, start: int = 0) -> Iterator[tuple[Tensor, Tensor]]:
        """The batches of epoch `number`, from batch `start` on: uint8 images and targets."""
        return self._read(self._parts(self._indices(number, start)))

    def stream(self, start: int = 0) -> Iterator[tuple[Tensor, Tensor]]:
        """Epoch after epoch without end, from batch `start` on, counted from the first of epoch 0."""
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
        # The loader runs ahead of what is handed out; the second copy of the indices waits for its images.
        ahead, behind = itertools.tee(batches)
        for indices, (images, positions) in zip(behind, self._decode(ahead), strict=True):
            self.skipped.update(set(indices.tolist()) - set(indices[positions].tolist()))
            if positions:
                targets = self.images.targets[indices[positions]]
                yield images.to(self.device, non_blocking=True), targets.to(self.device)
            # Not a few bad files: a disk that went away would otherwise pass in silence.
            elif len(indices) > 1 or (self.world > 1 and self.drop_last):
                raise DataError(f"none of the {len(indices)} images of a batch could be read; is their disk there?")

    def _decode(self, batches: Iterable[Tensor]) -> Iterator[tuple[Tensor, list[int]]]:
        lists = (indices.tolist() for indices in batches)
        if isinstance(self.images, GpuDecodedImages):
            return map(self.images.unpack, load_batches(self.images.pack, lists, self.workers))
        return load_batches(self.images.load, lists, self.workers, pin_memory=self.device.type == "cuda")
