"""Adam whose steps are shrunk by how much of them may be noise."""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn


class Shrunk(torch.optim.Optimizer):
    """Steps of what of a gradient's running mean stands above its noise, coordinate by coordinate.

    With m and v the running means of g and g², weighted alike from the first step on, Adam's step is lr m / √v. A
    gradient that is nothing but noise has |m| of the size σ = √(v Σ w²), w being the weights in m: over T steps Adam
    then walks lr √T at random, however small the gradient is, since every step is as long. Here the step is

        lr m / √v · max(0, 1 − (c σ / m)²),

    which is Adam's where m stands far above σ and nothing where it is below c σ (in form the positive part of James and
    Stein's estimator, 1961). Noise alone then walks 0.58 times as far for c = 1, and 0.11 for c = 2.

    Args:
        params: What is stepped.
        lr: Longest step of a coordinate.
        betas: How slowly m and v forget.
        caution: c, how many times its noise m has to be.
    """

    def __init__(
        self,
        params: Iterable[nn.Parameter],
        lr: float = 0.05,
        betas: tuple[float, float] = (0.95, 0.99),
        caution: float = 1.0,
    ) -> None:
        for name, value in zip(("betas[0]", "betas[1]"), betas, strict=True):
            if not 0 <= value < 1:
                raise ValueError(f"{name} must lie in [0, 1), got {value!r}")
        for name, value in (("lr", lr), ("caution", caution)):
            if not value >= 0:
                raise ValueError(f"{name} must be at least 0, got {value!r}")
        super().__init__(params, {"lr": lr, "betas": betas, "caution": caution})

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> None:  # type: ignore[override]
        """Take a step along the gradients that are there."""
        assert closure is None, "a closure is not used"
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._step(parameter, parameter.grad, group)

    def _step(self, parameter: nn.Parameter, gradient: Tensor, group: dict[str, Any]) -> None:
        state = self.state[parameter]
        if not state:
            state["step"], state["mean"], state["square"] = 0, torch.zeros_like(gradient), torch.zeros_like(gradient)
        state["step"] += 1
        slow, slower = group["betas"]
        state["mean"].lerp_(gradient, 1 - slow)
        state["square"].lerp_(gradient.square(), 1 - slower)
        left, older = slow ** state["step"], slower ** state["step"]
        mean, square = state["mean"] / (1 - left), state["square"] / (1 - older)
        weights = (1 - slow) / (1 + slow) * (1 + left) / (1 - left)  # Σ w²
        times = mean / square.sqrt()  # of the gradient's own size; nothing where there never was one
        above = (1 - group["caution"] ** 2 * weights / times.square()).clamp(min=0)
        parameter.sub_((group["lr"] * above * times).nan_to_num_(0.0))
