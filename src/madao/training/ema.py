"""An average of the weights over training."""

import copy
import itertools

import torch
from torch import nn


class WeightAverage:
    """θ̄ ← d θ̄ + (1 − d) θ after each step, with d = min(decay, (1 + t) / (10 + t)), so that early steps fade soon.

    Buffers that are not floating point, as counters, are copied.

    Args:
        model: What is averaged.
        decay: Towards 1, the average is longer.
        ramp: Whether d grows to that, rather than being it from the start.
    """

    def __init__(self, model: nn.Module, decay: float, ramp: bool = True) -> None:
        self.module = copy.deepcopy(model).eval().requires_grad_(False)
        self.decay, self.ramp = decay, ramp
        self.steps = 0

    @torch.no_grad()
    def update(self, model: nn.Module) -> None:
        """Take in the weights as they are now."""
        decay = min(self.decay, (1 + self.steps) / (10 + self.steps)) if self.ramp else self.decay
        self.steps += 1
        averages = itertools.chain(self.module.parameters(), self.module.buffers())
        for average, here in zip(averages, itertools.chain(model.parameters(), model.buffers()), strict=True):
            if average.is_floating_point():
                average.lerp_(here.to(average.dtype), 1 - decay)
            else:
                average.copy_(here)

    def state_dict(self) -> dict[str, object]:
        """What `load_state_dict` needs."""
        return {"steps": self.steps, "module": self.module.state_dict()}

    def load_state_dict(self, state: dict[str, object]) -> None:
        """Go on from a saved state."""
        self.steps = int(state["steps"])  # type: ignore[call-overload]
        self.module.load_state_dict(state["module"])  # type: ignore[arg-type]
