"""The optimizer of a policy's parameters: Adam without momentum, with decay towards the initial policy."""

import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn


class PolicyAdam(torch.optim.Adam):
    """Adam without momentum, with decay towards the initial parameters: φ ← φ − η (ĝ + λ (φ − φ₀)).

    ĝ is the gradient divided by its running root mean square, and φ₀ is the initial φ. If ĝ has the mean m and nothing
    else changes, φ converges to about φ₀ − m / λ. m is between −1 and 1: the signal of one step over its root mean
    square. So a parameter moves in proportion to the evidence, by 1 / λ if that is perfect. Without evidence it
    fluctuates around φ₀ with a deviation of √(η / 2λ), however long training lasts.

    Without decay, every slight preference grows into a policy of few operations. The gradient is linear in the
    selection probabilities, so it cannot see the value of variety. Unlike with RMSprop, the first steps are no longer
    than the others.

    Args:
        parameters: The parameters of the policy.
        lr: η.
        pull: λ, the decay; 0 for none.

    Example:
        >>> policy = madao.Policy()
        >>> optimizer = PolicyAdam(policy.parameters(), lr=0.03, pull=0.5)
    """

    def __init__(self, parameters: Iterable[nn.Parameter], lr: float = 0.03, pull: float = 0.0) -> None:
        if not 0 <= pull < math.inf:
            raise ValueError(f"pull must be at least 0 and finite, got {pull!r}")
        super().__init__(parameters, lr=lr, betas=(0.0, 0.99))
        self.defaults["pull"] = pull
        for group in self.param_groups:
            group["pull"] = pull

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add parameters, whose present values become φ₀."""
        super().add_param_group(param_group)
        group = self.param_groups[-1]
        group.setdefault("pull", self.defaults.get("pull", 0.0))
        # In the group, so that copies and checkpoints include it.
        group["start"] = [parameter.detach().clone() for parameter in group["params"]]

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Perform a step. Parameters without a gradient do not change."""
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
        """Restore a saved state. One of plain Adam has no φ₀, so this optimizer keeps its own."""
        own = [{name: group[name] for name in ("pull", "start")} for group in self.param_groups]
        super().load_state_dict(state_dict)
        for group, before in zip(self.param_groups, own, strict=True):
            for name, value in before.items():
                group.setdefault(name, value)
