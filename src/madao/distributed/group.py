"""The processes of a training: which examples each of them has, and how they exchange tensors."""

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


@dataclasses.dataclass(frozen=True)
class Shard:
    """The examples `start` to `stop` of one process, of `total` that are numbered in the order of the processes."""

    start: int
    stop: int
    total: int

    @classmethod
    def of(cls, rank: int, sizes: Sequence[int]) -> "Shard":
        """Return the shard of a process, given the numbers of examples of all processes."""
        start = sum(sizes[:rank])
        return cls(start, start + sizes[rank], sum(sizes))

    @classmethod
    def alone(cls, count: int) -> "Shard":
        """Return the shard of a single process, which has all examples."""
        return cls(0, count, count)

    def __len__(self) -> int:
        return self.stop - self.start


@dataclasses.dataclass(frozen=True)
class ProcessGroup:
    """The processes of a training, of which this one has the number `rank` of `world`. A single one does nothing.

    Every process must make the same calls in the same order. Results are the same in all processes, bit for bit.

    Example:
        >>> ProcessGroup().places([3, 5], torch.device("cpu"))
        [Shard(start=0, stop=3, total=3), Shard(start=0, stop=5, total=5)]
    """

    rank: int = 0
    world: int = 1

    @classmethod
    def current(cls) -> "ProcessGroup":
        """Return the processes of `torch.distributed`, or a single one if it is not in use."""
        if not dist.is_available() or not dist.is_initialized():
            return cls()
        return cls(dist.get_rank(), dist.get_world_size())

    @property
    def is_first(self) -> bool:
        """Whether this is the first process, which writes files and messages."""
        return self.rank == 0

    def all_reduce_sum(self, vector: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """Return the sum over all processes, by one message for each dtype."""
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
        """Return the largest value of all processes, element by element."""
        if self.world > 1:
            values = values.clone()
            dist.all_reduce(values, dist.ReduceOp.MAX)
        return values

    def places(self, counts: Sequence[int], device: torch.device) -> list[Shard]:
        """Return the shards of several kinds of examples, given the numbers of examples of this process."""
        if self.world == 1:
            return [Shard.alone(count) for count in counts]
        sizes = [torch.zeros(len(counts), dtype=torch.int64, device=device) for _ in range(self.world)]
        dist.all_gather(sizes, torch.tensor(counts, device=device))
        return [Shard.of(self.rank, of_all) for of_all in torch.stack(sizes, 1).tolist()]

    def all_gather(self, values: Tensor, place: Shard | None = None) -> Tensor:
        """Return the values of the examples of all processes, `[B, …]` each, in the order of the processes.

        If the shard of this process is known, `place`, it may be larger than B; the rest is zero.
        """
        if self.world == 1:
            return values
        if place is None:
            (place,) = self.places([len(values)], values.device)
        whole = values.new_zeros(place.total, *values.shape[1:])
        whole[place.start : place.start + len(values)] = values.detach()
        dist.all_reduce(whole)  # each element is zero in all processes but one
        return whole

    @torch.no_grad()
    def broadcast_(self, tensors: Iterable[Tensor]) -> None:
        """Overwrite tensors, such as running statistics, by those of the first process."""
        if self.world > 1:
            for tensor in tensors:
                dist.broadcast(tensor, 0)

    def broadcast_object(self, value: Any) -> Any:
        """Return the object of the first process."""
        if self.world == 1:
            return value
        box = [value]
        dist.broadcast_object_list(box)
        return box[0]
