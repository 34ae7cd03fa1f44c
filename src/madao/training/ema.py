"""An average of the weights over training."""

import copy
import itertools

import torch
from torch import nn


class WeightAverage:
    """An exponential average: θ̄ ← d θ̄ + (1 − d) θ after each step, with d = min(decay, (1 + t) / (10 + t)).

    d rises so that early steps are soon forgotten; without `ramp`, it is `decay` from the start. Buffers that are not
    floating point, such as counters, are copied.
    """

    # Not torch.optim.swa_utils.AveragedModel: it copies the first step, so that results and checkpoints would differ.

    def __init__(self, model: nn.Module, decay: float, ramp: bool = True) -> None:
        self.module = copy.deepcopy(model).eval().requires_grad_(False)
        self.decay, self.ramp = decay, ramp
        self.steps = 0

    @torch.no_grad()
    def update(self, model: nn.Module) -> None:
        """Add the present weights to the average."""
        decay = min(self.decay, (1 + self.steps) / (10 + self.steps)) if self.ramp else self.decay
        self.steps += 1
        averages = itertools.chain(self.module.parameters(), self.module.buffers())
        for average, here in zip(averages, itertools.chain(model.parameters(), model.buffers()), strict=True):
            if average.is_floating_point():
                average.lerp_(here.to(average.dtype), 1 - decay)
            else:
                average.copy_(here)

    def state_dict(self) -> dict[str, object]:
        """Return the average and the number of steps."""
        return {"steps": self.steps, "module": self.module.state_dict()}

    def load_state_dict(self, state: dict[str, object]) -> None:
        """Restore a saved state."""
        self.steps = int(state["steps"])  # type: ignore[call-overload]
        self.module.load_state_dict(state["module"])  # type: ignore[arg-type]
