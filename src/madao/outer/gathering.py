"""The newest training images, gathered over training steps for an outer step that takes more than one batch."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

_MOST_BYTES = 2**28
"""Memory for gathered images."""

Tensors = tuple[Tensor, ...]


class GatheredImages:
    """A buffer of the newest training batches, as they were given.

    Args:
        count: Examples that `take` returns, if there are as many. Large images lower it, to 256 MiB of memory.
    """

    def __init__(self, count: int) -> None:
        self.count = count
        self._batches: list[Tensors] = []

    def add(self, batch: Sequence[Tensor]) -> None:
        """Add a batch, and drop batches that the newest `count` examples do not need.

        Batches are copied, since a loader may reuse its memory. Batches of other shapes than the newest are dropped.
        """
        copied = tuple(tensor.detach().clone() for tensor in batch)
        self._batches = [old for old in self._batches if _kinds(old) == _kinds(copied)] + [copied]
        size = max(copied[0][:1].numel() * copied[0].element_size(), 1)
        count = min(self.count, max(_MOST_BYTES // size, len(copied[0])))
        while sum(len(old[0]) for old in self._batches[1:]) >= count:
            del self._batches[0]

    def take(self) -> Tensors:
        """Return the newest `count` examples, or all if there are fewer."""
        return tuple(torch.cat(parts)[-self.count :] for parts in zip(*self._batches, strict=True))

    def state_dict(self) -> dict[str, Any]:
        """Return what `restored` needs."""
        return {"count": self.count, "batches": self._batches}

    @classmethod
    def restored(cls, state: dict[str, Any], device: torch.device) -> "GatheredImages":
        """Return the buffer that `state_dict` saved, on a device."""
        found = cls(int(state["count"]))
        found._batches = [tuple(tensor.to(device) for tensor in batch) for batch in state["batches"]]
        return found


def _kinds(batch: Tensors) -> list[tuple[torch.Size, torch.dtype]]:
    return [(tensor.shape[1:], tensor.dtype) for tensor in batch]
