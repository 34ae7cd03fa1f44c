"""Modules with their own random numbers."""

import hashlib
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.utils.data import get_worker_info


class SeededModule(nn.Module):
    """A module whose random numbers depend on its `seed` and on nothing else in the program.

    The random state is part of `state_dict()`, so a resumed run continues with the draws it would have made. Modules of
    different classes draw differently from the same seed. In a worker of a `DataLoader` the worker's seed is mixed in,
    so workers and epochs differ. A saved state continues on any device of its kind: `cuda:1` from the one of `cuda:0`.
    """

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        self.seed = seed
        self._generators: dict[str, torch.Generator] = {}
        self._saved: dict[str, Tensor] = {}

    def generator(self, device: torch.device | str = "cpu") -> torch.Generator:
        """Return the module's generator on a device."""
        worker = get_worker_info()
        # A forked worker inherits the parent's generators; with another name it starts its own.
        name = str(torch.device(device)) + ("" if worker is None else f" worker {worker.seed}")
        if name not in self._generators:
            text = f"{type(self).__name__} {self.seed} {'' if worker is None else worker.seed}"
            mixed = int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1
            self._generators[name] = torch.Generator(device).manual_seed(mixed)
            self._restore(name)
        return self._generators[name]

    def manual_seed(self, seed: int) -> Self:
        """Restart the random numbers from a seed."""
        self.seed = seed
        self._generators.clear()
        self._saved.clear()
        return self

    def get_extra_state(self) -> dict[str, Any]:
        """Return the random state, for `state_dict`."""
        states = {name: generator.get_state() for name, generator in self._generators.items()}
        return {"seed": self.seed, "generators": {**self._saved, **states}}

    def set_extra_state(self, state: dict[str, Any]) -> None:
        """Continue from a saved random state; devices without a saved one start from the seed."""
        self.seed = state["seed"]
        self._saved = {name: saved.cpu() for name, saved in state["generators"].items()}
        for name in list(self._generators):  # keep the objects: CUDA graphs hold them
            if not self._restore(name):
                del self._generators[name]

    def _restore(self, name: str) -> bool:
        """Set a generator to a state saved on a device of its kind, its own first. Return whether there is one."""
        kind = name.split(":")[0]
        alike = [saved for other, saved in self._saved.items() if other.split(":")[0] == kind and "worker" not in other]
        saved = self._saved.get(name, alike[0] if alike and "worker" not in name else None)
        if saved is not None:
            self._generators[name].set_state(saved)
        return saved is not None
