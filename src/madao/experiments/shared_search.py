"""A search for RandAugment's magnitude that commands on several machines share, through a storage of Optuna."""

import hashlib
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from madao.config.train_config import TrainConfig, free_settings, to_dict
from madao.errors import UserError, first_line
from madao.experiments.magnitude_search import MagnitudeSearch, draw_with_seeds, read_search

_ATTEMPTS = 5
_PAUSE = 1.0
"""Seconds between two attempts to use a storage that others lock."""
_PERMANENT = ("ArgumentError", "NoSuchModuleError")
"""Errors of sqlalchemy, Optuna's database library, that waiting does not fix."""


class SharedSearch(MagnitudeSearch):
    """A random search whose trials are divided among all commands that share storage and name.

    The file remembers the trials of this command.
    """

    def __init__(self, path: Path, trials: int, seeds: int, storage: str, name: str) -> None:
        super().__init__(path, trials, seeds)
        self._optuna = optuna_library()
        self._optuna.logging.set_verbosity(self._optuna.logging.WARNING)
        self._states = self._optuna.trial.TrialState
        self.storage, self.name = storage, name
        self._study = self._use(
            lambda: self._optuna.create_study(storage=storage, study_name=name, load_if_exists=True)
        )
        saved = read_search(path)
        self._own = {int(number) for number in saved["own"]} if saved.get("study") == name else set()
        self._taken: set[int] = set()

    def next(self) -> float | None:
        """Return a trial that this command began earlier, or one that no command has begun."""
        begun = [number for number in self._numbers(self._states.RUNNING) if number in self._own - self._taken]
        number = begun[0] if begun else self._ask()
        if number is None:
            return None
        self._taken.add(number)
        self._own.add(number)
        self.write()
        return self.magnitudes[number]

    def _ask(self) -> int | None:
        if len(self._trials()) >= len(self.magnitudes):
            return None
        trial = self._use(self._study.ask)
        if trial.number >= len(self.magnitudes):  # another command was faster
            self._use(lambda: self._study.tell(trial, state=self._states.FAIL))
            return None
        seed, _ = draw_with_seeds(len(self.magnitudes))[trial.number]
        self._study.sampler = self._optuna.samplers.RandomSampler(seed=seed)
        self._use(lambda: trial.suggest_float("magnitude", 0.0, 1.0, step=0.01))  # for Optuna's own tables
        return int(trial.number)

    def tell(self, magnitude: float, validation_error: float) -> None:
        """Tell all commands the result of a trial."""
        number = self.magnitudes.index(magnitude)
        self._use(lambda: self._study.tell(number, validation_error, skip_if_finished=True))
        self.write()

    def best(self) -> float | None:
        """Return the best magnitude of all commands' trials; None until every trial has ended or was given up."""
        trials = self._trials()
        known: dict[int, float] = {each.number: each.value for each in trials if each.state == self._states.COMPLETE}
        self.errors = {self.magnitudes[number]: value for number, value in known.items()}
        if len(trials) < len(self.magnitudes) or any(t.state == self._states.RUNNING for t in trials) or not known:
            return None
        return self.magnitudes[min(known, key=lambda number: (known[number], number))]

    def unfinished(self) -> str:
        """Return which trials other commands have begun and not ended, and how to give them up."""
        elsewhere = [number for number in self._numbers(self._states.RUNNING) if number not in self._own]
        if not elsewhere:
            return super().unfinished()
        give_up = f"--study-name {self.name} --trial-number {elsewhere[0]} --state fail"
        return (
            f"trial {', '.join(map(str, elsewhere))} of the search for RandAugment's magnitude runs elsewhere; run the "
            "same command again when it has ended, or, if it never will: "
            f"optuna tell --storage {self.storage} {give_up}"
        )

    def identity(self) -> dict[str, Any]:
        """Return the name of the study and the trials of this command."""
        own = {str(number): self.magnitudes[number] for number in sorted(self._own)}
        return {**super().identity(), "study": self.name, "own": own}

    def _trials(self) -> list[Any]:
        trials = self._use(lambda: self._study.get_trials(deepcopy=False))
        return [trial for trial in trials if trial.number < len(self.magnitudes)]

    def _numbers(self, state: Any) -> list[int]:
        return [trial.number for trial in self._trials() if trial.state == state]

    def _use(self, use: Callable[[], Any]) -> Any:
        """Use the storage, again after a pause where it fails: others lock it, or are creating its tables."""
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                return use()
            except Exception as error:  # every database has its own errors
                permanent = isinstance(error, ImportError | ValueError) or type(error).__name__ in _PERMANENT
                if permanent or attempt == _ATTEMPTS:
                    raise UserError(
                        f"`search.storage={self.storage}` cannot be used: {first_line(error)}; expected sqlite:///FILE "
                        "or another URL of Optuna; once it can be used, run the same command again"
                    ) from None
                time.sleep(_PAUSE)
        raise AssertionError


def study_name(config: TrainConfig, seeds: int, data: str | None) -> str:
    """Name a study by RandAugment's settings, seeds and the hash of the images; only the same share a search."""
    flat: dict[str, Any] = {}
    for key, value in to_dict(config).items():
        flat |= {f"{key}.{name}": each for name, each in value.items()} if isinstance(value, dict) else {key: value}
    free = {*free_settings(), "seed", "augment.magnitude", *(key for key in flat if key.startswith("outer."))}
    kept = {key: value for key, value in flat.items() if key not in free} | {"seeds": [*range(seeds)], "data": data}
    digest = hashlib.sha256(json.dumps(kept, sort_keys=True).encode()).hexdigest()
    return f"madao-randaugment-{digest[:12]}"


def optuna_library() -> Any:
    """Import Optuna, or raise with the remedy."""
    try:
        import optuna
    except ModuleNotFoundError:
        raise UserError(
            "`search.storage` needs Optuna: pip install 'madao[search]'; leave `search.storage` out to search on this "
            "machine alone"
        ) from None
    return optuna
