"""The search for RandAugment's magnitude: random trials, as in the paper, compared by validation error."""

import json
from pathlib import Path
from typing import Any

import numpy as np

from madao.files import replacing

_SEED = 20_000
MAGNITUDES = 101
"""Number of different magnitudes: 0 to 1 in steps of 0.01."""


class MagnitudeSearch:
    """A random search over magnitudes, by the mean validation error over seeds.

    The file remembers finished trials, also when their run directories are gone.
    """

    def __init__(self, path: Path, trials: int, seeds: int = 1) -> None:
        self.path, self.seeds = path, seeds
        self.magnitudes = draw_magnitudes(trials)
        saved = read_search(path)
        known = saved.get("trials", []) if saved.get("seeds", 1) == seeds else []
        self.errors: dict[float, float] = {trial["magnitude"]: trial["validation_error"] for trial in known}
        self._untaken = iter(self.magnitudes)

    def next(self) -> float | None:
        """Return the magnitude of a trial to train, or None if every trial is taken."""
        magnitude = next((each for each in self._untaken if each not in self.errors), None)
        if magnitude is not None:
            self.write()
        return magnitude

    def tell(self, magnitude: float, validation_error: float) -> None:
        """Note the result of a trial."""
        self.errors[magnitude] = validation_error
        self.write()

    def best(self) -> float | None:
        """Return the magnitude of the lowest error, the first of several; None until every trial has ended."""
        if not self.errors.keys() >= {*self.magnitudes}:
            return None
        return min(self.magnitudes, key=self.errors.__getitem__)

    def unfinished(self) -> str:
        """Return the reason why there is no best magnitude yet."""
        return "no trial of the search for RandAugment's magnitude has ended well"

    def write(self) -> None:
        """Write search.json."""
        best = self.best()
        trials = [
            {"number": number, "magnitude": magnitude, "validation_error": self.errors[magnitude]}
            for number, magnitude in enumerate(self.magnitudes)
            if magnitude in self.errors
        ]
        write_search(self.path, {**self.identity(), "trials": trials, "magnitude": best})

    def identity(self) -> dict[str, Any]:
        """Return the entries of search.json that tell one search from another."""
        return {"seeds": self.seeds}


def draw_magnitudes(trials: int) -> list[float]:
    """Draw different magnitudes. A trial's magnitude depends on its number alone."""
    return [magnitude for _, magnitude in draw_with_seeds(trials)]


def draw_with_seeds(trials: int) -> list[tuple[int, float]]:
    """Draw the magnitude of each trial together with the seed that Optuna's RandomSampler draws it from."""
    found: dict[float, int] = {}
    for number in range(trials):
        seed = _SEED + number
        while (magnitude := _draw(seed)) in found:
            seed += MAGNITUDES
        found[magnitude] = seed
    return [(seed, magnitude) for magnitude, seed in found.items()]


def _draw(seed: int) -> float:
    # The arithmetic of Optuna's RandomSampler, which made the draws of earlier versions.
    return round(round(np.random.RandomState(seed).uniform(-0.005, 1.005) / 0.01) * 0.01, 2)


def read_search(path: Path) -> dict[str, Any]:
    """Read a search.json; empty if there is none."""
    try:
        return dict(json.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError:
        return {}


def write_search(path: Path, content: dict[str, Any]) -> None:
    """Write a search.json."""
    with replacing(path) as file:
        file.write((json.dumps(content, indent=2) + "\n").encode())
