"""The draws of the search for RandAugment's magnitude, and the search that machines share."""

import dataclasses
import hashlib
import json
import multiprocessing
import sys
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any

import pytest

from madao.config.train_config import AugmentConfig, OuterConfig, TrainConfig
from madao.errors import UserError
from madao.experiments import shared_search
from madao.experiments.magnitude_search import MAGNITUDES, MagnitudeSearch, draw_magnitudes, draw_with_seeds
from madao.experiments.shared_search import SharedSearch, study_name


def search(folder: Path, trials: int = 3, storage: Path | None = None) -> SharedSearch:
    pytest.importorskip("optuna")
    folder.mkdir(exist_ok=True)
    return SharedSearch(folder / "search.json", trials, 1, f"sqlite:///{storage or folder / 'search.db'}", "test")


def test_magnitudes_are_those_of_every_version() -> None:
    drawn = draw_magnitudes(MAGNITUDES)
    assert drawn[:5] == draw_magnitudes(5) == [0.39, 0.79, 0.06, 0.47, 0.11]
    assert sorted(drawn) == [i / 100 for i in range(MAGNITUDES)]
    assert hashlib.sha256(repr(drawn).encode()).hexdigest().startswith("2cd45bc50de7fd62")


def test_magnitudes_are_those_of_optunas_random_sampler() -> None:
    optuna = pytest.importorskip("optuna")
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    for seed, magnitude in draw_with_seeds(10):
        study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=seed))
        assert study.ask().suggest_float("magnitude", 0.0, 1.0, step=0.01) == pytest.approx(magnitude, abs=1e-9)


@pytest.mark.parametrize("shared", [False, True])
def test_the_first_of_the_lowest_errors_is_best_once_all_trials_have_ended(tmp_path: Path, shared: bool) -> None:
    found = search(tmp_path) if shared else MagnitudeSearch(tmp_path / "search.json", 3)
    tried = [found.next() for _ in range(4)]
    assert tried == [*found.magnitudes, None]
    for number, error in ((0, 0.3), (2, 0.2)):
        found.tell(found.magnitudes[number], error)
        assert found.best() is None
    found.tell(found.magnitudes[1], 0.2)
    assert found.best() == found.magnitudes[1]
    saved = json.loads((tmp_path / "search.json").read_text())
    assert saved["magnitude"] == found.magnitudes[1]
    assert [trial["validation_error"] for trial in saved["trials"]] == [0.3, 0.2, 0.2]


def test_a_command_that_begins_again_resumes_its_own_trials_alone(tmp_path: Path) -> None:
    storage = tmp_path / "shared.db"
    mine, theirs = search(tmp_path / "a", 3, storage), search(tmp_path / "b", 3, storage)
    first, _ = mine.next(), theirs.next()
    again = search(tmp_path / "a", 3, storage)
    assert [again.next() for _ in range(3)] == [first, again.magnitudes[2], None]
    assert "--trial-number 1 --state fail" in again.unfinished()


def test_a_trial_that_was_given_up_does_not_count(tmp_path: Path) -> None:
    found = search(tmp_path, 2)
    for _ in range(2):
        found.next()
    found.tell(found.magnitudes[0], 0.4)
    assert found.best() is None
    found._study.tell(1, state=found._states.FAIL)
    assert found.best() == found.magnitudes[0]


def _trials(folder: Path, storage: Path, ready: Barrier) -> None:
    ready.wait(60)
    mine = search(folder, 6, storage)
    while (magnitude := mine.next()) is not None:
        mine.tell(magnitude, abs(magnitude - 0.5))


def test_two_processes_share_a_search(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    ready, storage = context.Barrier(2), tmp_path / "shared.db"
    processes = [context.Process(target=_trials, args=(tmp_path / name, storage, ready)) for name in ("a", "b")]
    for process in processes:
        process.start()
    for process in processes:
        process.join(120)
        assert process.exitcode == 0
    both = [search(tmp_path / name, 6, storage) for name in ("a", "b")]
    both[0].write()
    trials = json.loads((tmp_path / "a" / "search.json").read_text())["trials"]
    assert [trial["number"] for trial in trials] == [0, 1, 2, 3, 4, 5]
    assert [trial["magnitude"] for trial in trials] == draw_magnitudes(6)  # as one process alone
    nearest = min(draw_magnitudes(6), key=lambda magnitude: abs(magnitude - 0.5))
    assert [each.best() for each in both] == [nearest, nearest]


def test_other_settings_are_another_search() -> None:
    config = TrainConfig(augment=AugmentConfig(method="randaugment"))
    name = study_name(config, 1, "data")
    same = dataclasses.replace(config, out="elsewhere", seed=5, outer=OuterConfig(lr=1.0))
    assert study_name(same, 1, "data") == name
    assert study_name(dataclasses.replace(config, epochs=31), 1, "data") != name
    assert study_name(config, 2, "data") != name
    assert study_name(config, 1, "other data") != name


def test_a_storage_that_is_locked_for_a_moment_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_search, "_PAUSE", 0.0)
    found, failures = search(tmp_path), iter(range(2))

    def locked() -> Any:
        if next(failures, None) is not None:
            raise RuntimeError("database is locked")
        return "done"

    assert found._use(locked) == "done"
    failures = iter(range(99))
    with pytest.raises(UserError, match=r"search\.storage"):
        found._use(locked)


def test_without_optuna_only_a_shared_search_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    assert MagnitudeSearch(tmp_path / "search.json", 1).next() == 0.39
    with pytest.raises(UserError, match=r"madao\[search\]"):
        SharedSearch(tmp_path / "search.json", 1, 1, "sqlite://", "test")


def test_a_storage_that_cannot_be_opened_is_named(tmp_path: Path) -> None:
    pytest.importorskip("optuna")
    with pytest.raises(UserError, match="nothing://x"):
        SharedSearch(tmp_path / "search.json", 3, 1, "nothing://x", "test")
