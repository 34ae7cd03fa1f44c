"""Validation batches for outer steps, one after another without end."""

from collections.abc import Iterable, Iterator

from torch import Tensor

Batch = tuple[Tensor, Tensor]


class ValidationBatches:
    """The validation batches of outer steps: a given batch, or the next one of a loader, which restarts at its end."""

    def __init__(self) -> None:
        self._open: tuple[object, Iterator[Batch]] | None = None

    def next(self, validation: Batch | Iterable[Batch]) -> Batch:
        """Return images and targets."""
        if isinstance(validation, tuple | list) and len(validation) == 2 and isinstance(validation[0], Tensor):
            return validation[0], validation[1]
        if self._open is None or self._open[0] is not validation:
            self._open = (validation, iter(validation))
        batch = next(self._open[1], None)
        if batch is None:
            self._open = (validation, iter(validation))
            batch = next(self._open[1], None)
        if batch is None:
            raise ValueError("the validation loader gave no batch: it is empty, or an iterator that has ended")
        if not isinstance(batch, tuple | list) or len(batch) != 2:
            raise ValueError(
                f"a validation batch must be (images, targets), got {type(batch).__name__} of {len(batch)}"
            )
        return batch[0], batch[1]
