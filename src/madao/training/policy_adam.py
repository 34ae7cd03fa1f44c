"""How a policy steps: Adam without momentum, with a pull back to where the policy started."""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn


class PolicyAdam(torch.optim.Adam):
    """φ ← φ − η (ĝ + λ (φ − φ₀)), ĝ being the gradient over its running root mean square, φ₀ where φ started.

    Where ĝ has the mean m and nothing else changes, φ ends at φ₀ − m / λ. m is between −1 and 1: the signal of one step
    over its root mean square. So a logit moves as far as there is evidence, by at most 1 / λ, and where there is none
    it walks about φ₀ with a deviation of √(η / 2λ) at most, however long. Without the pull every preference, however
    slight, ends in a policy of few operations, since what a gradient can see of selection is linear in it; the worth of
    variety it cannot see.

    The first steps are no longer than the others, which is what RMSprop lacks.

    Args:
        parameters: Of the policy.
        lr: η.
        pull: λ, 0 for none.
    """

    def __init__(self, parameters: Iterable[nn.Parameter], lr: float = 0.03, pull: float = 0.0) -> None:
        super().__init__(parameters, lr=lr, betas=(0.0, 0.99))
        if not pull >= 0:
            raise ValueError(f"pull must be at least 0, got {pull!r}")
        self.pull = pull
        self._start = [parameter.detach().clone() for group in self.param_groups for parameter in group["params"]]

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Pull and step; parameters without a gradient stay where they are."""
        starts = iter(self._start)
        for group in self.param_groups:
            for parameter, start in zip(group["params"], starts, strict=False):
                if self.pull and parameter.grad is not None:
                    parameter.lerp_(start.to(parameter), min(group["lr"] * self.pull, 1.0))
        return super().step(closure)

    def state_dict(self) -> dict[str, Any]:
        """Adam's, and where the policy started."""
        return {**super().state_dict(), "start": [start.clone() for start in self._start]}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from a saved state; one of plain Adam has no start, which is then where the policy was made."""
        super().load_state_dict(state_dict)
        start: list[Tensor] | None = state_dict.get("start")
        if start is not None:
            self._start = [tensor.clone() for tensor in start]
