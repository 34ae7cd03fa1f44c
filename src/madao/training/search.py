"""RandAugment's magnitude, chosen as in the paper: a few at random, by validation error; through Optuna."""

import hashlib
import json
import time
from pathlib import Path
from typing import Any

from madao.training.atomic import replacing
from madao.training.config import TrainConfig, as_plain
from madao.training.errors import UserError
from madao.training.rundir import FREE

_SEED = 20_000
"""Of the first trial's magnitude; the others follow. A trial's magnitude depends on its number alone, so that machines
that share a search try different ones."""

_ATTEMPTS = 5
_MISNAMED = ("ArgumentError", "NoSuchModuleError")
"""Errors of sqlalchemy, which comes with Optuna, that no waiting mends."""


class Search:
    """A search that several commands, on several machines, may share.

    Args:
        path: Where this command keeps which trials are its own, and what was chosen.
        storage: Optuna's URL.
        name: Of the study: searches of another name in the same storage are others.
        trials: How many magnitudes.
    """

    def __init__(self, path: Path, storage: str, name: str, trials: int) -> None:
        optuna = _optuna()
        self.path, self.storage, self.name, self.trials = path, storage, name, trials
        self._sampler = optuna.samplers.RandomSampler
        self._running = optuna.trial.TrialState.RUNNING
        self._complete, self._failed = optuna.trial.TrialState.COMPLETE, optuna.trial.TrialState.FAIL
        optuna.logging.set_verbosity(optuna.logging.WARNING)
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
                time.sleep(1.0)  # somebody else is making the tables, which fails in as many ways as there are tables
        raise AssertionError

    def next(self) -> tuple[int, float] | None:
        """A trial to run: its number and its magnitude; None where every one is taken. Not of this command's own."""
        if len(self._study.get_trials(deepcopy=False)) >= self.trials:
            return None
        trial = self._study.ask()
        if trial.number >= self.trials:  # somebody else was faster
            self._study.tell(trial, state=self._failed)
            return None
        self._study.sampler = self._sampler(seed=_SEED + trial.number)
        magnitude = trial.suggest_float("magnitude", 0.0, 1.0, step=0.01)
        self._own[str(trial.number)] = magnitude = round(magnitude, 2)
        self.write()
        return trial.number, magnitude

    def unfinished(self) -> list[tuple[int, float]]:
        """Trials that this command began and did not finish."""
        running = [trial.number for trial in self._trials() if trial.state == self._running]
        return [(number, self._own[str(number)]) for number in running if str(number) in self._own]

    def elsewhere(self) -> list[int]:
        """Trials that others began and have not finished."""
        return [
            trial.number
            for trial in self._trials()
            if trial.state == self._running and str(trial.number) not in self._own
        ]

    def tell(self, number: int, validation_error: float) -> None:
        """How a trial ended."""
        self._study.tell(number, validation_error, skip_if_finished=True)
        self.write()

    def magnitude(self) -> float | None:
        """What was chosen: the lowest validation error, the first of equals; None until every trial has ended."""
        trials = self._trials()
        known = [trial for trial in trials if trial.state == self._complete]
        if len(trials) < self.trials or any(trial.state == self._running for trial in trials) or not known:
            return None
        return round(float(min(known, key=lambda trial: (trial.value, trial.number)).params["magnitude"]), 2)

    def write(self) -> None:
        """Write down what is known."""
        trials = [
            {"number": trial.number, "magnitude": round(trial.params["magnitude"], 2), "validation_error": trial.value}
            for trial in self._trials()
            if trial.state == self._complete
        ]
        chosen = {"study": self.name, "own": self._own, "trials": trials, "magnitude": self.magnitude()}
        write_search(self.path, chosen)

    def how_to_give_up(self, number: int) -> str:
        """The command for a trial whose machine is gone."""
        return f"optuna tell --storage {self.storage} --study-name {self.name} --trial-number {number} --state fail"

    def _trials(self) -> list[Any]:
        return [*self._study.get_trials(deepcopy=False)][: self.trials]


def write_search(path: Path, content: dict[str, Any]) -> None:
    """Replace a search.json at once."""
    with replacing(path) as file:
        file.write((json.dumps(content, indent=2) + "\n").encode())


def study_name(config: TrainConfig, seeds: list[int]) -> str:
    """One name for searches of the same settings and seeds, another for others."""
    flat: dict[str, Any] = {}
    for key, value in as_plain(config).items():
        flat |= {f"{key}.{name}": each for name, each in value.items()} if isinstance(value, dict) else {key: value}
    free = {*FREE, "seed", "augment.magnitude", *(key for key in flat if key.startswith("outer."))}
    kept = {key: value for key, value in flat.items() if key not in free} | {"seeds": seeds}
    digest = hashlib.sha256(json.dumps(kept, sort_keys=True).encode()).hexdigest()
    return f"madao-randaugment-{digest[:12]}"


def _optuna() -> Any:
    try:
        import optuna
    except ModuleNotFoundError:
        raise UserError(
            "the search for RandAugment's magnitude needs Optuna: pip install 'madao[search]'; or take "
            "--augment.magnitude as it is, by --search.trials 0"
        ) from None
    return optuna
