"""What a policy sampled for a batch, so that it can be replayed."""

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor


@dataclasses.dataclass(frozen=True, eq=False)
class Draw:
    """For each stage k and image b: which operation, whether it is applied, how strongly, which way.

    Every field has shape `[K, B]`. Applying the same draw to the same images gives the same result, whatever
    became of the policy in between.

    Attributes:
        choice: Index of the operation, int64.
        applied: Whether it is applied, bool.
        magnitude: μ in [0, 1]. In a relaxed draw it carries the gradient to the magnitude logits.
        sign: +1 or −1.
        weight: In a relaxed draw, u_i / stop_gradient(u_i): the value 1 with the gradient to the selection logits.
        gate: In a relaxed draw, `applied` as 0 or 1 with the gradient to the application logits.
    """

    choice: Tensor
    applied: Tensor
    magnitude: Tensor
    sign: Tensor
    weight: Tensor | None = None
    gate: Tensor | None = None

    def __post_init__(self) -> None:
        shape = self.choice.shape
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if value is not None and (value.ndim != 2 or value.shape != shape):
                raise ValueError(
                    f"every field of a Draw has shape [stages, images]; choice has {list(shape)}, "
                    f"{field.name} has {list(value.shape)}"
                )

    def __len__(self) -> int:
        """The number of images."""
        return self.choice.shape[1]

    @property
    def stages(self) -> int:
        """The number of stages."""
        return self.choice.shape[0]

    @property
    def differentiable(self) -> bool:
        """Whether a gradient can flow through it to a policy."""
        return self.magnitude.requires_grad or self.weight is not None or self.gate is not None

    def __getitem__(self, index: Any) -> "Draw":
        """The draw of some of the images, by slice, indices or mask."""
        if isinstance(index, int):
            if not -len(self) <= index < len(self):
                raise IndexError(f"image {index} of a draw for {len(self)}")
            index = slice(index, index + 1 or None)
        return self._map(lambda value: value[:, index])

    def __iter__(self) -> Iterator["Draw"]:
        """The draw of each image."""
        return (self[i] for i in range(len(self)))

    def to(self, device: torch.device | str) -> "Draw":
        """The draw on another device."""
        return self._map(lambda value: value.to(device))

    def detach(self) -> "Draw":
        """The hard draw alone: no gradient reaches the policy through it."""
        hard = dataclasses.replace(self, weight=None, gate=None)
        return hard._map(Tensor.detach)

    def pathwise(self) -> "Draw":
        """The draw with a gradient to the magnitudes alone, for estimators that score the discrete choices."""
        return dataclasses.replace(self, weight=None, gate=None)

    def _map(self, function: Callable[[Tensor], Tensor]) -> "Draw":
        def mapped(value: Tensor | None) -> Tensor | None:
            return None if value is None else function(value)

        return Draw(
            choice=function(self.choice),
            applied=function(self.applied),
            magnitude=function(self.magnitude),
            sign=function(self.sign),
            weight=mapped(self.weight),
            gate=mapped(self.gate),
        )
