"""Images for outer steps that take more than one batch: the newest training images, and the next validation images."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from madao.policy.base_augmentation import check_unnormalised

_MOST_BYTES = 2**28
"""Memory for gathered images."""

Tensors = tuple[Tensor, ...]
Batch = tuple[Tensor, Tensor]


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


class ValidationBatches:
    """The validation batches of outer steps: a given batch, or the next ones of a loader, which restarts at its end."""

    def __init__(self) -> None:
        self._open: tuple[object, Iterator[Batch]] | None = None

    def next(self, validation: Batch | Iterable[Batch], count: int | None = None) -> Batch:
        """Return images and targets.

        Args:
            validation: A batch, or a loader of batches.
            count: Images to gather from a loader, if one pass over it has as many. By default those of one batch.

        Raises:
            ValueError: There is no batch, or its images are normalised already.
        """
        images, targets = self._next(validation, count)
        check_unnormalised(images, "validation images")
        return images, targets

    def _next(self, validation: Batch | Iterable[Batch], count: int | None) -> Batch:
        if isinstance(validation, tuple | list) and len(validation) == 2 and isinstance(validation[0], Tensor):
            return validation[0], validation[1]
        found: list[Batch] = []
        whole = self._open is None or self._open[0] is not validation  # a pass that begins here holds all images
        while not found or sum(len(images) for images, _ in found) < (count or 0):
            batch = self._read(validation)
            if batch is not None:
                found.append(_pair(batch))
                continue
            self._open = None
            if whole:
                break
            whole = True
        if not found:
            raise ValueError("the validation loader gave no batch: it is empty, or an iterator that has ended")
        if len(found) == 1:
            return found[0]
        images, targets = (torch.cat(parts)[:count] for parts in zip(*found, strict=True))
        return images, targets

    def _read(self, validation: Iterable[Batch]) -> Batch | None:
        if self._open is None or self._open[0] is not validation:
            self._open = (validation, iter(validation))
        return next(self._open[1], None)


def _pair(batch: Any) -> Batch:
    if isinstance(batch, tuple | list) and len(batch) == 2:
        return batch[0], batch[1]
    raise ValueError(f"a validation batch must be (images, targets), got {describe_batch(batch)}")


def describe_batch(batch: Any) -> str:
    """Return the kind of a batch, and how to make a pair of it."""
    if isinstance(batch, Mapping):
        keys = [repr(key) for key in batch]
        names = f"(batch[{keys[0]}], batch[{keys[-1]}])" if len(keys) > 1 else "(images, targets)"
        return f"a {type(batch).__name__} with the keys {', '.join(keys)}; give a pair of its entries, such as {names}"
    size = f" of {len(batch)}" if hasattr(batch, "__len__") else ""
    return f"{type(batch).__name__}{size}"
