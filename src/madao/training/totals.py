"""Loss and error of the epoch so far, kept on the device so that steps need not wait."""

from typing import Any

import torch
from torch import Tensor

_NEVER = torch.iinfo(torch.int64).max
"""The step of a loss that was not finite, where every one was."""


class Totals:
    """Sums over the training images of an epoch.

    Args:
        device: Where they are kept.

    Attributes:
        images: How many there were.
    """

    def __init__(self, device: torch.device) -> None:
        self._sums = torch.zeros(2, dtype=torch.float64, device=device)  # loss, misclassified
        self._bad = torch.full((), _NEVER, device=device)
        self.images = 0

    def add(self, loss: Tensor, wrong: Tensor, count: int, step: int) -> None:
        """Take in a batch of `count` images, with its mean loss and how many of them were misclassified."""
        self._sums += torch.stack([loss.double() * count, wrong.double()])
        self._bad = torch.minimum(self._bad, torch.where(loss.isfinite(), _NEVER, step))
        self.images += count

    def first_bad_step(self) -> int | None:
        """The first step whose loss was infinite or NaN, if any."""
        step = int(self._bad)
        return None if step == _NEVER else step

    @property
    def loss(self) -> float:
        """The mean loss."""
        return float(self._sums[0]) / max(self.images, 1)

    @property
    def error(self) -> float:
        """The part that was misclassified, while learning and augmented."""
        return float(self._sums[1]) / max(self.images, 1)

    def clear(self) -> None:
        """Begin an epoch."""
        self._sums.zero_()
        self.images = 0

    def state_dict(self) -> dict[str, Any]:
        """What `load_state_dict` needs."""
        return {"sums": self._sums.cpu(), "images": self.images}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a saved state."""
        self._sums.copy_(state["sums"])
        self.images = int(state["images"])
