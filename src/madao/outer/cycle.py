"""Validation batches for outer steps, one after another without end."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

Batch = tuple[Tensor, Tensor]


class ValidationBatches:
    """The validation batches of outer steps: a given batch, or the next ones of a loader, which restarts at its end."""

    def __init__(self) -> None:
        self._open: tuple[object, Iterator[Batch]] | None = None

    def next(self, validation: Batch | Iterable[Batch], count: int | None = None) -> Batch:
        """Return images and targets.

        Args:
            validation: A batch, or a loader of batches.
            count: Images to gather from a loader, if one pass over it has as many. By default those of one batch.
        """
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
