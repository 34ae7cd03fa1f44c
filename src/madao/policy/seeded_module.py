"""A module's own source of random numbers."""

import hashlib
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.utils.data import get_worker_info


class SeededModule(nn.Module):
    """A module whose random numbers start from `seed` and depend on nothing else in the program.

    They travel in `state_dict()`, so that a resumed run goes on with the draws it would have made. Modules of different
    classes draw differently from the same seed. Inside a worker of a `DataLoader` the worker's own seed is mixed in, so
    that workers and epochs differ. A saved state goes on on any device of its kind: `cuda:1` from that of `cuda:0`.
    """

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        self.seed = seed
        self._generators: dict[str, torch.Generator] = {}
        self._saved: dict[str, Tensor] = {}

    def generator(self, device: torch.device | str = "cpu") -> torch.Generator:
        """The module's own generator on a device."""
        worker = get_worker_info()
        # A forked worker inherits the parent's generators: under a name of its own it starts its own.
        name = str(torch.device(device)) + ("" if worker is None else f" worker {worker.seed}")
        if name not in self._generators:
            text = f"{type(self).__name__} {self.seed} {'' if worker is None else worker.seed}"
            mixed = int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1
            self._generators[name] = torch.Generator(device).manual_seed(mixed)
            self._go_on(name)
        return self._generators[name]

    def manual_seed(self, seed: int) -> Self:
        """Start the random numbers anew."""
        self.seed = seed
        self._generators.clear()
        self._saved.clear()
        return self

    def get_extra_state(self) -> dict[str, Any]:
        """The random state, for `state_dict`."""
        states = {name: generator.get_state() for name, generator in self._generators.items()}
        return {"seed": self.seed, "generators": {**self._saved, **states}}

    def set_extra_state(self, state: dict[str, Any]) -> None:
        """Go on from a saved random state; on a device this machine lacks, from the seed."""
        self.seed = state["seed"]
        self._saved = {name: saved.cpu() for name, saved in state["generators"].items()}
        for name in list(self._generators):  # one that is there stays: CUDA graphs hold it
            if not self._go_on(name):
                del self._generators[name]

    def _go_on(self, name: str) -> bool:
        """Put a generator where a saved one of its device was, or of another device of its kind."""
        kind = name.split(":")[0]
        alike = [saved for other, saved in self._saved.items() if other.split(":")[0] == kind and "worker" not in other]
        saved = self._saved.get(name, alike[0] if alike and "worker" not in name else None)
        if saved is not None:
            self._generators[name].set_state(saved)
        return saved is not None
