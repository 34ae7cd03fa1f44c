"""Loss and error of the epoch so far. The sums stay on the device, so that steps do not wait for it."""

from typing import Any

import torch
from torch import Tensor

from madao.distributed.group import ProcessGroup

_NEVER = torch.iinfo(torch.int64).max
"""Stands for the step of a loss that was not finite where there is none."""


class EpochMetrics:
    """Sums over the training images of an epoch, of which `images` were seen so far.

    Each of the `ranks` adds its part of every batch. Numbers are totals of all processes, which must read them at the
    same time.
    """

    def __init__(self, device: torch.device, ranks: ProcessGroup | None = None) -> None:
        self.ranks = ProcessGroup() if ranks is None else ranks
        self._sums = torch.zeros(2, dtype=torch.float64, device=device)  # loss, errors
        self._bad = torch.full((), _NEVER, device=device)
        self.images = 0

    def add(self, loss: Tensor, num_errors: Tensor, count: int, step: int) -> None:
        """Add a batch of `count` images: this process's part of its mean loss and of the number of errors."""
        self._sums += torch.stack([loss.double() * count, num_errors.double()])
        self._bad = torch.minimum(self._bad, torch.where(loss.isfinite(), _NEVER, step))
        self.images += count

    def first_bad_step(self) -> int | None:
        """Return the first step whose loss was infinite or NaN, if any."""
        step = -int(self.ranks.all_reduce_max(-self._bad))
        return None if step == _NEVER else step

    @property
    def loss(self) -> float:
        """The mean loss."""
        return float(self._of_all[0]) / max(self.images, 1)

    @property
    def error(self) -> float:
        """The part of the augmented training images that the model had wrong."""
        return float(self._of_all[1]) / max(self.images, 1)

    @property
    def _of_all(self) -> Tensor:
        return self.ranks.all_reduce_sum((self._sums,))[0]

    def clear(self) -> None:
        """Begin an epoch."""
        self._sums.zero_()
        self.images = 0

    def state_dict(self) -> dict[str, Any]:
        """Return the sums of all processes."""
        return {"sums": self._of_all.cpu(), "images": self.images}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a saved state."""
        self._sums.copy_(state["sums"])
        if not self.ranks.is_first:
            self._sums.zero_()  # the first process goes on with the sums of all
        self.images = int(state["images"])
