"""How a policy steps: Adam without momentum, with a pull back to where the policy started."""

import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn


class PolicyAdam(torch.optim.Adam):
    """φ ← φ − η (ĝ + λ (φ − φ₀)), ĝ being the gradient over its running root mean square, φ₀ where φ started.

    Where ĝ has the mean m and nothing else changes, φ ends about φ₀ − m / λ. m is between −1 and 1: the signal of one
    step over its root mean square. So a parameter moves as far as there is evidence, by 1 / λ where that is perfect,
    and where there is none it walks about φ₀ with a deviation of √(η / 2λ), however long. Without the pull every
    preference, however slight, ends in a policy of few operations, since what a gradient can see of selection is linear
    in it; the worth of variety it cannot see.

    The first steps are no longer than the others, which is what RMSprop lacks.

    Args:
        parameters: Of the policy.
        lr: η.
        pull: λ, 0 for none.
    """

    def __init__(self, parameters: Iterable[nn.Parameter], lr: float = 0.03, pull: float = 0.0) -> None:
        if not 0 <= pull < math.inf:
            raise ValueError(f"pull must be at least 0 and finite, got {pull!r}")
        super().__init__(parameters, lr=lr, betas=(0.0, 0.99))
        self.defaults["pull"] = pull
        for group in self.param_groups:
            group["pull"] = pull

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Parameters that are pulled back to where they are now."""
        super().add_param_group(param_group)
        group = self.param_groups[-1]
        group.setdefault("pull", self.defaults.get("pull", 0.0))
        # In the group, so that it is copied and saved with it.
        group["start"] = [parameter.detach().clone() for parameter in group["params"]]

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Pull and step; parameters without a gradient stay where they are."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            part = min(float(group["lr"]) * group["pull"], 1.0)
            for parameter, start in zip(group["params"], group["start"], strict=True):
                if part and parameter.grad is not None:
                    parameter.lerp_(start.to(parameter), part)
        super().step()
        return loss

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from a saved state; one of plain Adam knows no start, which is then where the policy was made."""
        own = [{name: group[name] for name in ("pull", "start")} for group in self.param_groups]
        super().load_state_dict(state_dict)
        for group, before in zip(self.param_groups, own, strict=True):
            for name, value in before.items():
                group.setdefault(name, value)
