"""The signal-to-noise ratio of a sequence of gradients.

Each gradient is g_t = s + n_t: a signal s that all steps share, and noise n_t of mean zero. The squared signal-to-noise
ratio of one step is R = ‖s‖² / E‖n‖². The mean of N steps points along s if N is well above 1 / R. These estimates need
no true gradient.
"""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor


def signal_to_noise(gradients: Tensor) -> float:
    """Estimate ‖s‖² / E‖n‖² from gradients `[N, P]`. Without a signal, the estimate is below zero as often as above."""
    count = _check(gradients)
    noise = gradients.var(0).sum()
    signal = gradients.mean(0).square().sum() - noise / count
    return float(signal / noise) if noise > 0 else math.inf


def agreement(gradients: Tensor) -> float:
    """Return the cosine between the means of even and odd steps of `[N, P]`: 0 for pure noise, 1 for pure signal."""
    _check(gradients)
    halves = gradients[::2].mean(0), gradients[1::2].mean(0)
    return float(torch.nn.functional.cosine_similarity(*halves, dim=0))


def expected_agreement(signal_to_noise: float, steps: int) -> float:
    """Return the expected `agreement`, NR / (1 + NR), for N steps in each half and the ratio R of one step."""
    product = steps * max(signal_to_noise, 0.0)
    return product / (1 + product)


def t_values(gradients: Tensor) -> Tensor:
    """Return each parameter's mean gradient over its standard error, `[P]` from `[N, P]`. Beyond ±3 is no accident."""
    count = _check(gradients)
    return gradients.mean(0) / (gradients.std(0) / math.sqrt(count)).clamp(min=torch.finfo(gradients.dtype).tiny)


class RunningSignal:
    """A running estimate of the signal-to-noise ratio: R ≈ E⟨g_t, g_{t−1}⟩ / (E‖g‖² − E⟨g_t, g_{t−1}⟩).

    The noise of two steps is independent, so their product has the signal alone as its mean. After a few times 1 / (1 −
    decay) steps, the estimate is good to a factor of about two.
    """

    def __init__(self, decay: float = 0.98) -> None:
        if not 0 <= decay < 1:
            raise ValueError(f"decay must be at least 0 and below 1, got {decay!r}")
        self.decay = decay
        self._last: list[Tensor] | None = None
        self._means: Tensor | None = None  # [parts, 2]: products with the last step, and squares
        self._weight = 0.0

    def update(self, gradients: Sequence[Tensor]) -> None:
        """Add the gradient of a step, in parts with separate ratios. The host does not wait."""
        now = [gradient.detach().flatten().double() for gradient in gradients]
        if self._last is not None:
            pairs = zip(now, self._last, strict=True)
            # No matrix products: cuBLAS would allocate a workspace of 32 MiB for them.
            rows = [torch.stack([(g * last).sum(), (g * g + last * last).sum() / 2]) for g, last in pairs]
            found = torch.stack(rows)
            means = torch.zeros_like(found) if self._means is None else self._means
            self._means = self.decay * means + (1 - self.decay) * found
            self._weight = self.decay * self._weight + 1 - self.decay
        self._last = [gradient.clone() for gradient in now]

    def ratios(self) -> list[float] | None:
        """Return the squared ratio of each part; None before the second step. The host waits."""
        if self._means is None:
            return None
        means = (self._means / self._weight).tolist()
        return [product / (square - product) if square > product else math.inf for product, square in means]

    def state_dict(self) -> dict[str, Any]:
        """Return what `load_state_dict` needs."""
        return {"last": self._last, "means": self._means, "weight": self._weight}

    def load_state_dict(self, state: dict[str, Any], device: torch.device | str = "cpu") -> None:
        """Restore a saved state on a device."""
        last, means = state["last"], state["means"]
        self._last = None if last is None else [gradient.to(device) for gradient in last]
        self._means = None if means is None else means.to(device)
        self._weight = state["weight"]


def _check(gradients: Tensor) -> int:
    if gradients.ndim != 2 or len(gradients) < 4:
        raise ValueError(f"gradients must be [steps, parameters] of at least 4 steps, got {list(gradients.shape)}")
    return len(gradients)
