"""Several processes that share a problem, each with examples of its own: what they add up, and what they all see."""

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


@dataclasses.dataclass(frozen=True)
class Shard:
    """The examples of one process among those of all, which are in the order of the processes.

    Attributes:
        start: The first one's number.
        stop: One more than the last one's number.
        total: Of all processes.
    """

    start: int
    stop: int
    total: int

    @classmethod
    def of(cls, rank: int, sizes: Sequence[int]) -> "Shard":
        """Of the process `rank`, where they have so many examples each."""
        start = sum(sizes[:rank])
        return cls(start, start + sizes[rank], sum(sizes))

    @classmethod
    def alone(cls, count: int) -> "Shard":
        """Of the only process, which has them all."""
        return cls(0, count, count)

    def __len__(self) -> int:
        """How many examples the process has."""
        return self.stop - self.start


@dataclasses.dataclass(frozen=True)
class ProcessGroup:
    """The processes, and which of them this one is. Alone it does nothing at all.

    Every process makes the same calls in the same order. What they return is the same on all of them, bit for bit.

    Attributes:
        rank: Of this process.
        world: How many there are.
    """

    rank: int = 0
    world: int = 1

    @classmethod
    def current(cls) -> "ProcessGroup":
        """Those of `torch.distributed`, where it is in use."""
        if not dist.is_available() or not dist.is_initialized():
            return cls()
        return cls(dist.get_rank(), dist.get_world_size())

    @property
    def first(self) -> bool:
        """Whether this is the process that writes and speaks."""
        return self.rank == 0

    def all_reduce_sum(self, vector: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """The sum over all processes, in one message for each dtype."""
        if self.world == 1:
            return vector
        result: list[Tensor] = list(vector)
        for kind in dict.fromkeys(tensor.dtype for tensor in vector):
            places = [i for i, tensor in enumerate(vector) if tensor.dtype == kind]
            flat = torch.cat([vector[i].detach().reshape(-1) for i in places])
            dist.all_reduce(flat)
            for i, part in zip(places, flat.split([vector[i].numel() for i in places]), strict=True):
                result[i] = part.view(vector[i].shape)
        return tuple(result)

    def all_reduce_max(self, values: Tensor) -> Tensor:
        """The largest of all processes, number by number."""
        if self.world > 1:
            values = values.clone()
            dist.all_reduce(values, dist.ReduceOp.MAX)
        return values

    def places(self, counts: Sequence[int], device: torch.device) -> list[Shard]:
        """Of several kinds of examples, of which this process has so many each."""
        if self.world == 1:
            return [Shard.alone(count) for count in counts]
        sizes = [torch.zeros(len(counts), dtype=torch.int64, device=device) for _ in range(self.world)]
        dist.all_gather(sizes, torch.tensor(counts, device=device))
        return [Shard.of(self.rank, of_all) for of_all in torch.stack(sizes, 1).tolist()]

    def all_gather(self, values: Tensor, place: Shard | None = None) -> Tensor:
        """The examples' values of all processes, one behind the other; `values` is `[B, …]`, each with its own B.

        Where the place is known already it may have room for more: what is left of it is zero.
        """
        if self.world == 1:
            return values
        if place is None:
            (place,) = self.places([len(values)], values.device)
        whole = values.new_zeros(place.total, *values.shape[1:])
        whole[place.start : place.start + len(values)] = values.detach()
        dist.all_reduce(whole)  # to zeros every other process adds nothing
        return whole

    @torch.no_grad()
    def broadcast_(self, tensors: Iterable[Tensor]) -> None:
        """Overwrite tensors by those of the first process: running statistics, which each has its own of."""
        if self.world > 1:
            for tensor in tensors:
                dist.broadcast(tensor, 0)

    def broadcast_object(self, value: Any) -> Any:
        """What the first process says."""
        if self.world == 1:
            return value
        box = [value]
        dist.broadcast_object_list(box)
        return box[0]
