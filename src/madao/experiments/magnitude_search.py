"""RandAugment's magnitude, chosen as in the paper: a few at random, by validation error; through Optuna."""

import hashlib
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from madao.config.train_config import TrainConfig, free_settings, to_dict
from madao.errors import UserError
from madao.files import replacing

_SEED = 20_000
"""Of the first trial's magnitude; the others follow. A trial's magnitude depends on its number alone, so that machines
that share a search try different ones."""
MAGNITUDES = 101
"""Those there are, in steps of 0.01."""

_ATTEMPTS = 5
_PAUSE = 1.0
"""Seconds between them."""
_MISNAMED = ("ArgumentError", "NoSuchModuleError")
"""Errors of sqlalchemy, which comes with Optuna, that no waiting mends."""


class Search:
    """A search that several commands, on several machines, may share.

    Args:
        path: Where this command keeps which trials are its own, and what was chosen.
        storage: Optuna's URL.
        name: Of the study: searches of another name in the same storage are others.
        trials: How many magnitudes, at most `MAGNITUDES`.
        private: Whether nobody else uses the storage: then every trial is this command's own.
    """

    def __init__(self, path: Path, storage: str, name: str, trials: int, private: bool = False) -> None:
        optuna = optuna_library()
        self.path, self.storage, self.name, self.trials = path, storage, name, trials
        self._sampler = optuna.samplers.RandomSampler
        self._running = optuna.trial.TrialState.RUNNING
        self._complete, self._failed = optuna.trial.TrialState.COMPLETE, optuna.trial.TrialState.FAIL
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self.private, self._drawn = private, _draws(optuna, trials)
        self._study = self._opened(optuna)
        self._own: dict[str, float] = {}
        if path.exists():
            saved = json.loads(path.read_text(encoding="utf-8"))
            if saved.get("study") == name:
                self._own = saved["own"]

    def _opened(self, optuna: Any) -> Any:
        sampler = self._sampler(seed=_SEED)
        for attempt in range(_ATTEMPTS):
            try:
                return optuna.create_study(
                    storage=self.storage, sampler=sampler, study_name=self.name, load_if_exists=True
                )
            except Exception as error:  # of whichever data base it is
                first = str(error).splitlines()[0]
                misnamed = isinstance(error, ImportError | ValueError) or type(error).__name__ in _MISNAMED
                if misnamed or attempt + 1 == _ATTEMPTS:
                    raise UserError(
                        f"--search.storage {self.storage} cannot be opened: {first}; expected sqlite:///FILE or "
                        "another URL of Optuna's"
                    ) from None
                time.sleep(
                    _PAUSE
                )  # somebody else is making the tables, which fails in as many ways as there are tables
        raise AssertionError

    def next(self) -> tuple[int, float] | None:
        """A trial to run: its number and its magnitude; None where every one is taken. Not of this command's own."""
        if len(self._patiently(lambda: self._study.get_trials(deepcopy=False))) >= self.trials:
            return None
        trial = self._patiently(self._study.ask)
        if trial.number >= self.trials:  # somebody else was faster
            self._patiently(lambda: self._study.tell(trial, state=self._failed))
            return None
        seed, magnitude = self._drawn[trial.number]
        self._study.sampler = self._sampler(seed=seed)
        self._patiently(lambda: _suggest(trial))  # so that Optuna knows it, too
        self._own[str(trial.number)] = magnitude
        self.write()
        return trial.number, magnitude

    def unfinished(self) -> list[tuple[int, float]]:
        """Trials that this command began and did not finish."""
        return [(number, self._drawn[number][1]) for number in self._begun() if self._is_own(number)]

    def elsewhere(self) -> list[int]:
        """Trials that others began and have not finished."""
        return [number for number in self._begun() if not self._is_own(number)]

    def tell(self, number: int, validation_error: float) -> None:
        """How a trial ended."""
        self._patiently(lambda: self._study.tell(number, validation_error, skip_if_finished=True))
        self.write()

    def magnitude(self) -> float | None:
        """What was chosen: the lowest validation error, the first of equals; None until every trial has ended."""
        trials = self._trials()
        known = [trial for trial in trials if trial.state == self._complete]
        if len(trials) < self.trials or any(trial.state == self._running for trial in trials) or not known:
            return None
        _, best = min((float(trial.value), int(trial.number)) for trial in known)
        return self._drawn[best][1]

    def write(self) -> None:
        """Write down what is known."""
        trials = [
            {"number": trial.number, "magnitude": self._drawn[trial.number][1], "validation_error": trial.value}
            for trial in self._trials()
            if trial.state == self._complete
        ]
        chosen = {"study": self.name, "own": self._own, "trials": trials, "magnitude": self.magnitude()}
        write_search(self.path, chosen)

    def how_to_give_up(self, number: int) -> str:
        """The command for a trial whose machine is gone."""
        return f"optuna tell --storage {self.storage} --study-name {self.name} --trial-number {number} --state fail"

    def _trials(self) -> list[Any]:
        return [*self._patiently(lambda: self._study.get_trials(deepcopy=False))][: self.trials]

    def _begun(self) -> list[int]:
        return [trial.number for trial in self._trials() if trial.state == self._running]

    def _is_own(self, number: int) -> bool:
        return self.private or str(number) in self._own

    def _patiently(self, use: Callable[[], Any]) -> Any:
        """Use the storage, which others may keep locked for a moment."""
        for attempt in range(_ATTEMPTS):
            try:
                return use()
            except Exception as error:  # of whichever data base it is
                if attempt + 1 == _ATTEMPTS:
                    first = str(error).splitlines()[0] if str(error) else type(error).__name__
                    raise UserError(
                        f"the search's storage cannot be used: {first}; run the same command again once it can"
                    ) from None
                time.sleep(_PAUSE)
        raise AssertionError


def write_search(path: Path, content: dict[str, Any]) -> None:
    """Replace a search.json at once."""
    with replacing(path) as file:
        file.write((json.dumps(content, indent=2) + "\n").encode())


def _draws(optuna: Any, trials: int) -> list[tuple[int, float]]:
    """The seed and the magnitude of every trial: uniformly at random, but for those of trials before it."""
    found: dict[float, int] = {}
    for number in range(trials):
        seed = _SEED + number
        while (magnitude := _first(optuna, seed)) in found:
            seed += MAGNITUDES
        found[magnitude] = seed
    return [(seed, magnitude) for magnitude, seed in found.items()]


def _first(optuna: Any, seed: int) -> float:
    return _suggest(optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=seed)).ask())


def _suggest(trial: Any) -> float:
    return round(float(trial.suggest_float("magnitude", 0.0, 1.0, step=0.01)), 2)


def study_name(config: TrainConfig, seeds: list[int], data: str | None) -> str:
    """One name for searches of the same settings, seeds and data, as its fingerprint tells; another for others."""
    flat: dict[str, Any] = {}
    for key, value in to_dict(config).items():
        flat |= {f"{key}.{name}": each for name, each in value.items()} if isinstance(value, dict) else {key: value}
    free = {*free_settings(), "seed", "augment.magnitude", *(key for key in flat if key.startswith("outer."))}
    kept = {key: value for key, value in flat.items() if key not in free} | {"seeds": seeds, "data": data}
    digest = hashlib.sha256(json.dumps(kept, sort_keys=True).encode()).hexdigest()
    return f"madao-randaugment-{digest[:12]}"


def optuna_library() -> Any:
    """Optuna; an error that says what to do without it."""
    try:
        import optuna
    except ModuleNotFoundError:
        raise UserError(
            "the search for RandAugment's magnitude needs Optuna: pip install 'madao[search]'; or leave "
            "randaugment out of --methods, or take --augment.magnitude as it is, by --search.trials 0"
        ) from None
    return optuna
