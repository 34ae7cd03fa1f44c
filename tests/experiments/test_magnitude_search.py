"""The search for RandAugment's magnitude: random, shared, by validation error, and never begun twice."""

import dataclasses
import json
import multiprocessing
import sys
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any

import pytest

from madao.config.train_config import AugmentConfig, OuterConfig, TrainConfig
from madao.errors import UserError
from madao.experiments.magnitude_search import MAGNITUDES, Search, study_name


def search(folder: Path, trials: int = 3, storage: Path | None = None) -> Search:
    folder.mkdir(exist_ok=True)
    return Search(folder / "search.json", f"sqlite:///{storage or folder / 'search.db'}", "test", trials)


def test_the_lowest_validation_error_is_chosen_once_all_have_ended(tmp_path: Path) -> None:
    found = search(tmp_path)
    tried = [found.next() for _ in range(4)]
    assert tried[3] is None
    magnitudes = dict(each for each in tried if each is not None)
    assert len({*magnitudes.values()}) == 3
    assert all(0 <= magnitude <= 1 for magnitude in magnitudes.values())
    found.tell(0, 0.3)
    found.tell(2, 0.2)
    assert found.magnitude() is None
    found.tell(1, 0.2)
    assert found.magnitude() == magnitudes[1]
    saved = json.loads((tmp_path / "search.json").read_text())
    assert saved["magnitude"] == magnitudes[1]
    assert [trial["validation_error"] for trial in saved["trials"]] == [0.3, 0.2, 0.2]


def test_a_command_that_begins_again_takes_up_its_own_trials_alone(tmp_path: Path) -> None:
    storage = tmp_path / "shared.db"
    mine, theirs = search(tmp_path / "a", storage=storage), search(tmp_path / "b", storage=storage)
    first, second = mine.next(), theirs.next()
    again = search(tmp_path / "a", storage=storage)
    assert again.unfinished() == [first]
    assert again.elsewhere() == [1]
    assert second is not None
    assert "--trial-number 1 --state fail" in again.how_to_give_up(second[0])


def _trials(folder: Path, storage: Path, ready: Barrier) -> None:
    ready.wait(60)
    mine = search(folder, 6, storage)
    while (found := mine.next()) is not None:
        mine.tell(found[0], abs(found[1] - 0.5))


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
    nearest = min((trial["magnitude"] for trial in trials), key=lambda magnitude: abs(magnitude - 0.5))
    assert [each.magnitude() for each in both] == [nearest, nearest]
    # The same that one process would have tried.
    alone = search(tmp_path / "c", 6)
    assert [alone.next() for _ in range(6)] == [(trial["number"], trial["magnitude"]) for trial in trials]


def test_other_settings_are_another_search() -> None:
    config = TrainConfig(augment=AugmentConfig(method="randaugment"))
    name = study_name(config, [0], "data")
    assert (
        study_name(dataclasses.replace(config, out="elsewhere", seed=5, outer=OuterConfig(lr=1.0)), [0], "data") == name
    )
    assert study_name(dataclasses.replace(config, epochs=31), [0], "data") != name
    assert study_name(config, [0, 1], "data") != name
    assert study_name(config, [0], "other data") != name


def test_no_magnitude_is_tried_twice(tmp_path: Path) -> None:
    found = search(tmp_path, 25)
    tried = [each for _ in range(25) if (each := found.next()) is not None]
    assert len({magnitude for _, magnitude in tried}) == 25
    everything = Search(tmp_path / "all.json", "sqlite:///" + str(tmp_path / "all.db"), "test", MAGNITUDES)
    assert sorted(magnitude for _, magnitude in everything._drawn) == [i / 100 for i in range(MAGNITUDES)]


def test_a_trial_that_was_never_written_down_is_taken_up_where_nobody_else_can_have_it(tmp_path: Path) -> None:
    lost = search(tmp_path)
    lost._study.ask()  # killed here: neither its magnitude nor whose it is is known
    again = search(tmp_path)
    assert (again.unfinished(), again.elsewhere()) == ([], [0])
    own = Search(tmp_path / "search.json", f"sqlite:///{tmp_path / 'search.db'}", "test", 3, private=True)
    alone = search(tmp_path / "alone")
    first = alone.next()
    assert (own.unfinished(), own.elsewhere()) == ([first], [])
    own.tell(0, 0.1)
    for _ in range(2):
        found = own.next()
        assert found is not None
        own.tell(found[0], 0.2)
    assert first is not None
    assert own.magnitude() == first[1]


def test_a_storage_that_is_locked_for_a_moment_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("madao.experiments.magnitude_search._PAUSE", 0.0)
    found = search(tmp_path)
    found.next()
    tell, failures = found._study.tell, iter(range(2))

    def locked(*arguments: Any, **settings: Any) -> None:
        if next(failures, None) is not None:
            raise RuntimeError("database is locked")
        tell(*arguments, **settings)

    monkeypatch.setattr(found._study, "tell", locked)
    found.tell(0, 0.2)
    assert found.unfinished() == []
    failures = iter(range(99))
    with pytest.raises(UserError, match="database is locked; run the same command again"):
        found.tell(0, 0.2)


def test_without_optuna_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(UserError, match=r"pip install 'madao\[search\]'.*--search.trials 0"):
        search(tmp_path)


def test_a_storage_that_cannot_be_opened_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"--search.storage nothing://x cannot be opened"):
        Search(tmp_path / "search.json", "nothing://x", "test", 3)
