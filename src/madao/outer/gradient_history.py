"""The training gradients that `Deflated` remembers, in one place, where a recorded step finds them again."""

import dataclasses
from typing import Any

import torch
from torch import Tensor, nn

from madao.hypergrad import Deflated, FunctionalModel


@dataclasses.dataclass(eq=False)
class Recent:
    """A ring of gradients, overwritten in place: their order does not matter to the solver, their address to graphs.

    Attributes:
        owner: Solver and parameters they belong to.
        rows: `[m − 1, number of parameters]`.
        oldest: The row that goes next.
    """

    owner: list[str]
    rows: Tensor
    oldest: int = 0

    @classmethod
    def of(cls, solver: Deflated, model: nn.Module, before: "Recent | None") -> "Recent":
        """That of before, or an empty one if it is another solver's, or parameters were frozen or thawed since."""
        params = FunctionalModel(model).params
        owner = [repr(solver), *params]
        if before is not None and before.owner == owner:
            return before
        return cls(owner, solver.nothing(tuple(params.values())))

    def add(self, newest: Tensor) -> None:
        """Put a gradient in the place of the oldest."""
        if len(self.rows):
            self.rows[self.oldest].copy_(newest)
            self.oldest = (self.oldest + 1) % len(self.rows)

    def state_dict(self) -> dict[str, Any]:
        """What `restored` needs."""
        return {"owner": self.owner, "rows": self.rows, "oldest": self.oldest}

    @classmethod
    def restored(cls, state: dict[str, Any], device: torch.device) -> "Recent":
        """As it was saved."""
        return cls(list(state["owner"]), state["rows"].to(device), int(state["oldest"]))
