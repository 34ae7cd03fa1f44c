"""The draw of a policy for a batch."""

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor


@dataclasses.dataclass(frozen=True, eq=False)
class Draw:
    """The operation, magnitude and sign of each image in each stage; every field is `[K, B]`.

    The same draw applied to the same images always gives the same result, even if the policy has changed since. Index
    it by images (`draw[3:9]`, `draw[mask]`).

    Attributes:
        choice: Index of the operation, int64.
        applied: Whether it is applied, bool.
        magnitude: μ in [0, 1]. In a relaxed draw it carries a gradient to the magnitude logits.
        sign: +1 or −1.
        weight: In a relaxed draw, u_i / stop_gradient(u_i): 1, with a gradient to the selection logits.
        gate: In a relaxed draw, `applied` as 0 or 1, with a gradient to the application logits.
    """

    choice: Tensor
    applied: Tensor
    magnitude: Tensor
    sign: Tensor
    weight: Tensor | None = None
    gate: Tensor | None = None

    def __post_init__(self) -> None:
        shape = self.choice.shape
        for name, value in vars(self).items():
            if value is not None and (value.ndim != 2 or value.shape != shape):
                raise ValueError(
                    f"every field of a Draw has shape [stages, images]; choice has {list(shape)}, "
                    f"{name} has {list(value.shape)}"
                )

    def __len__(self) -> int:
        return self.choice.shape[1]

    @property
    def stages(self) -> int:
        """Number of stages."""
        return self.choice.shape[0]

    @property
    def differentiable(self) -> bool:
        """Whether a gradient can flow through the draw to a policy."""
        return self.magnitude.requires_grad or self.weight is not None or self.gate is not None

    def __getitem__(self, index: Any) -> "Draw":
        if isinstance(index, int):
            if not -len(self) <= index < len(self):
                raise IndexError(f"image {index} of a draw for {len(self)}")
            index = slice(index, index + 1 or None)
        return self._map(lambda value: value[:, index])

    def __iter__(self) -> Iterator["Draw"]:
        return (self[i] for i in range(len(self)))

    def to(self, device: torch.device | str) -> "Draw":
        """Return the draw on another device."""
        return self._map(lambda value: value.to(device))

    def detach(self) -> "Draw":
        """Return the hard draw, without gradients to the policy."""
        return self.pathwise()._map(Tensor.detach)

    def pathwise(self) -> "Draw":
        """Return the draw with gradients to the magnitudes only, for estimators that score the discrete choices."""
        return dataclasses.replace(self, weight=None, gate=None)

    def _map(self, function: Callable[[Tensor], Tensor]) -> "Draw":
        return Draw(**{name: function(value) for name, value in vars(self).items() if value is not None})
