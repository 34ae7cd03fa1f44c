"""Loss and error of the epoch so far, kept on the device so that steps need not wait."""

from typing import Any

import torch
from torch import Tensor


class Totals:
    """Sums over the training images of an epoch.

    Args:
        device: Where they are kept.
    """

    def __init__(self, device: torch.device) -> None:
        self._sums = torch.zeros(3, dtype=torch.float64, device=device)  # loss, misclassified, images
        self._bad = torch.full((), torch.iinfo(torch.int64).max, device=device)
        self._none = self._bad.clone()

    def add(self, loss: Tensor, outputs: Tensor, labels: Tensor, step: int) -> None:
        """Take in a batch, with its mean loss."""
        count = len(labels)
        wrong = (outputs.argmax(1) != labels).sum()
        self._sums += torch.stack([loss.double() * count, wrong.double(), wrong.new_tensor(count).double()])
        self._bad = torch.minimum(self._bad, torch.where(loss.isfinite(), self._none, step))

    def first_bad_step(self) -> int | None:
        """The first step whose loss was infinite or NaN, if any."""
        step = int(self._bad)
        return None if step == int(self._none) else step

    @property
    def loss(self) -> float:
        """The mean loss."""
        return float(self._sums[0] / self._sums[2].clamp(min=1))

    @property
    def error(self) -> float:
        """The part that was misclassified, while learning and augmented."""
        return float(self._sums[1] / self._sums[2].clamp(min=1))

    @property
    def images(self) -> int:
        """How many there were."""
        return int(self._sums[2])

    def clear(self) -> None:
        """Begin an epoch."""
        self._sums.zero_()

    def state_dict(self) -> dict[str, Any]:
        """What `load_state_dict` needs."""
        return {"sums": self._sums.cpu()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a saved state."""
        self._sums.copy_(state["sums"])
