"""The search for RandAugment's magnitude: random, shared, by validation error, and never begun twice."""

import dataclasses
import json
import multiprocessing
import sys
from multiprocessing.synchronize import Barrier
from pathlib import Path

import pytest

from madao.training.config import AugmentConfig, OuterConfig, TrainConfig
from madao.training.errors import UserError
from madao.training.search import Search, study_name


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
    name = study_name(config, [0])
    assert study_name(dataclasses.replace(config, out="elsewhere", seed=5, outer=OuterConfig(lr=1.0)), [0]) == name
    assert study_name(dataclasses.replace(config, epochs=31), [0]) != name
    assert study_name(config, [0, 1]) != name


def test_without_optuna_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(UserError, match=r"pip install 'madao\[search\]'.*--search.trials 0"):
        search(tmp_path)


def test_a_storage_that_cannot_be_opened_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"--search.storage nothing://x cannot be opened"):
        Search(tmp_path / "search.json", "nothing://x", "test", 3)
