"""Loss and error of the epoch so far, kept on the device so that steps need not wait."""

from typing import Any

import torch
from torch import Tensor

from madao.distributed.group import ProcessGroup

_NEVER = torch.iinfo(torch.int64).max
"""The step of a loss that was not finite, where every one was."""


class EpochMetrics:
    """Sums over the training images of an epoch.

    Args:
        device: Where they are kept.
        ranks: The processes that each add their part; what is read is of all of them, who read together.

    Attributes:
        images: How many there were.
    """

    def __init__(self, device: torch.device, ranks: ProcessGroup | None = None) -> None:
        self.ranks = ProcessGroup() if ranks is None else ranks
        self._sums = torch.zeros(2, dtype=torch.float64, device=device)  # loss, misclassified
        self._bad = torch.full((), _NEVER, device=device)
        self.images = 0

    def add(self, loss: Tensor, num_errors: Tensor, count: int, step: int) -> None:
        """Take in a batch of `count` images, with one's part of its mean loss and of those that were misclassified."""
        self._sums += torch.stack([loss.double() * count, num_errors.double()])
        self._bad = torch.minimum(self._bad, torch.where(loss.isfinite(), _NEVER, step))
        self.images += count

    def first_bad_step(self) -> int | None:
        """The first step whose loss was infinite or NaN, if any."""
        step = -int(self.ranks.all_reduce_max(-self._bad))
        return None if step == _NEVER else step

    @property
    def loss(self) -> float:
        """The mean loss."""
        return float(self._of_all[0]) / max(self.images, 1)

    @property
    def error(self) -> float:
        """The part that was misclassified, while learning and augmented."""
        return float(self._of_all[1]) / max(self.images, 1)

    @property
    def _of_all(self) -> Tensor:
        return self.ranks.all_reduce_sum((self._sums,))[0]

    def clear(self) -> None:
        """Begin an epoch."""
        self._sums.zero_()
        self.images = 0

    def state_dict(self) -> dict[str, Any]:
        """What `load_state_dict` needs."""
        return {"sums": self._of_all.cpu(), "images": self.images}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a saved state."""
        self._sums.copy_(state["sums"])
        if not self.ranks.first:
            self._sums.zero_()  # the first one goes on with what all of them had
        self.images = int(state["images"])
