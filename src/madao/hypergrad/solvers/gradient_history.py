"""Training gradients of earlier outer steps, which `Deflated` remembers."""

import dataclasses
from typing import Any

import torch
from torch import Tensor

from madao.hypergrad.pytree import Vector


@dataclasses.dataclass(eq=False)
class GradientHistory:
    """A ring buffer of gradients that is overwritten in place: CUDA graphs read it at a fixed address."""

    rows: Tensor  # [m − 1, parameters], in any order; zeros where no gradient has been added yet
    owner: list[str] = dataclasses.field(default_factory=list)  # the solver and the parameters' names
    oldest: int = 0  # the row that the next gradient overwrites

    @classmethod
    def empty(cls, count: int, params: Vector, owner: list[str]) -> "GradientHistory":
        """Return `count` rows of zeros: float64 for float64 parameters, bfloat16 for all others."""
        dtype = torch.float64 if params[0].dtype == torch.float64 else torch.bfloat16
        size = sum(part.numel() for part in params)
        return cls(torch.zeros(count, size, dtype=dtype, device=params[0].device), owner)

    def add(self, newest: Tensor) -> None:
        """Overwrite the oldest gradient."""
        if len(self.rows):
            self.rows[self.oldest].copy_(newest)
            self.oldest = (self.oldest + 1) % len(self.rows)

    def state_dict(self) -> dict[str, Any]:
        """Return what `restored` needs."""
        return {"owner": self.owner, "rows": self.rows, "oldest": self.oldest}

    @classmethod
    def restored(cls, state: dict[str, Any], device: torch.device) -> "GradientHistory":
        """Return the history that `state_dict` saved, on a device."""
        return cls(state["rows"].to(device), list(state["owner"]), int(state["oldest"]))
