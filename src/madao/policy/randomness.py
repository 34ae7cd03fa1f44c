"""A module's own source of random numbers."""

from typing import Any, Self

import torch
from torch import nn


class OwnRandomness(nn.Module):
    """A module whose random numbers start from `seed` and depend on nothing else in the program.

    They travel in `state_dict()`, so that a resumed run goes on with the draws it would have made.
    """

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        self.seed = seed
        self._generators: dict[str, torch.Generator] = {}

    def generator(self, device: torch.device | str = "cpu") -> torch.Generator:
        """The module's own generator on a device."""
        name = str(torch.device(device))
        if name not in self._generators:
            self._generators[name] = torch.Generator(name).manual_seed(self.seed)
        return self._generators[name]

    def manual_seed(self, seed: int) -> Self:
        """Start the random numbers anew, for instance differently on each process."""
        self.seed = seed
        self._generators.clear()
        return self

    def get_extra_state(self) -> dict[str, Any]:
        """The random state, for `state_dict`."""
        states = {name: generator.get_state() for name, generator in self._generators.items()}
        return {"seed": self.seed, "generators": states}

    def set_extra_state(self, state: dict[str, Any]) -> None:
        """Go on from a saved random state; a device this machine lacks starts from the seed."""
        self.manual_seed(state["seed"])
        for name, generator_state in state["generators"].items():
            if torch.device(name).type == "cpu" or torch.cuda.is_available():
                self.generator(name).set_state(generator_state.cpu())
