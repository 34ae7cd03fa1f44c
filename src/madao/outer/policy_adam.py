"""The optimizer of a policy's parameters: Adam without momentum, which can hold back steps that may be noise."""

import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn


class PolicyAdam(torch.optim.Adam):
    """Adam without momentum, with two ways to stay near the initial parameters where there is little evidence.

    The walk of a parameter is w ← w − η (ĝ + λ (w − φ₀)).

    ĝ is the gradient divided by its running root mean square, and φ₀ is the initial φ. If ĝ has the mean m and nothing
    else changes, w converges to about φ₀ − m / λ. m is between −1 and 1: the signal of one step over its root mean
    square. So a parameter moves in proportion to the evidence, by 1 / λ if that is perfect. Without evidence it
    fluctuates around φ₀ with a deviation of √(η / 2λ), however long training lasts.

    Steps of pure noise walk √(Ση²) from φ₀ on average. The guard k takes the parameter only as far as the walk exceeds
    that:

        φ = φ₀ + (w − φ₀) · max(0, 1 − k² Ση² / (w − φ₀)²)

    A parameter stays at φ₀ until its walk is k times as long as noise alone would make it. A clear signal walks Ση,
    which is √n times as far after n steps, so the guard hardly holds it back.

    Without decay, every slight preference grows into a policy of few operations. The gradient is linear in the
    selection probabilities, so it cannot see the value of variety. Unlike with RMSprop, the first steps are no longer
    than the others.

    Args:
        parameters: The parameters of the policy.
        lr: η.
        pull: λ, the decay; 0 for none.
        guard: k; 0 for none. Then φ is w.

    Example:
        >>> policy = madao.Policy()
        >>> optimizer = PolicyAdam(policy.parameters(), lr=0.03, pull=0.5)
    """

    def __init__(
        self, parameters: Iterable[nn.Parameter], lr: float = 0.03, pull: float = 0.0, guard: float = 0.0
    ) -> None:
        for name, value in (("pull", pull), ("guard", guard)):
            if not 0 <= value < math.inf:
                raise ValueError(f"{name} must be at least 0 and finite, got {value!r}")
        super().__init__(parameters, lr=lr, betas=(0.0, 0.99))
        own = {"pull": pull, "guard": guard}
        self.defaults.update(own)
        for group in self.param_groups:
            group.update(own)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add parameters, whose present values become φ₀."""
        super().add_param_group(param_group)
        group = self.param_groups[-1]
        for name in ("pull", "guard"):
            group.setdefault(name, self.defaults.get(name, 0.0))
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
                if parameter.grad is None:
                    continue
                if group["guard"] and "walk" in self.state[parameter]:
                    parameter.copy_(self.state[parameter]["walk"])
                if part:
                    parameter.lerp_(start.to(parameter), part)
        super().step()
        for group in self.param_groups:
            if group["guard"]:
                for parameter, start in zip(group["params"], group["start"], strict=True):
                    if parameter.grad is not None:
                        self._hold_back(parameter, start.to(parameter), float(group["lr"]), group["guard"])
        return loss

    def _hold_back(self, parameter: nn.Parameter, start: Tensor, lr: float, guard: float) -> None:
        """Store the walk of a parameter, and set the parameter to the part of it that noise alone does not explain."""
        state = self.state[parameter]
        state["walk"] = parameter.detach().clone()
        state["noise"] = state.get("noise", 0.0) + lr**2
        walked = state["walk"] - start
        evidence = 1 - guard**2 * state["noise"] / walked.square().clamp(min=torch.finfo(walked.dtype).tiny)
        parameter.copy_(start + walked * evidence.clamp(min=0))

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore a saved state. One of plain Adam has no φ₀, so this optimizer keeps its own."""
        own = [{name: group[name] for name in ("pull", "guard", "start")} for group in self.param_groups]
        super().load_state_dict(state_dict)
        for group, before in zip(self.param_groups, own, strict=True):
            for name, value in before.items():
                group.setdefault(name, value)
