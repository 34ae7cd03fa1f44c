"""A comparison trains what is missing, keeps its files up to date and chooses RandAugment's magnitude."""

import json
from pathlib import Path
from typing import Any

import pytest

from madao.config.train_config import AugmentConfig, DataConfig, TrainConfig
from madao.errors import UserError
from madao.experiments.compare_config import CompareConfig, Plan, SearchConfig
from madao.experiments.comparison import Comparison
from madao.experiments.magnitude_search import draw_magnitudes
from madao.experiments.shared_search import SharedSearch
from madao.experiments.table import Table, run_path
from tests.helpers.run_directories import write_run


def plan(folder: Path, *methods: str, seeds: tuple[int, ...] = (0,), search: Any = None, **chosen: Any) -> Plan:
    """A plan on digits; methods called `broken …` ask for images that are not there."""
    base = TrainConfig(epochs=1)
    configs = {
        name: TrainConfig(
            epochs=1,
            augment=AugmentConfig(method="base" if "broken" in name else name),
            data=DataConfig(name="folder", root=name) if "broken" in name else base.data,
        )
        for name in methods
    }
    return Plan(CompareConfig(search=search or SearchConfig(), **chosen), folder, base, configs, [*seeds])


def trained(comparison: Comparison) -> Table:
    with comparison.begin():
        comparison.train()
        return comparison.write()


def finished(folder: Path, method: str, seed: int = 0, error: float = 0.05, magnitude: float | None = None) -> None:
    write_run(run_path(folder, method, seed, magnitude), method, seed, epochs=1, error=error)


def trials(folder: Path, *errors: float) -> list[float]:
    """Finish the trials of a search, with these validation errors."""
    magnitudes = draw_magnitudes(len(errors))
    for magnitude, error in zip(magnitudes, errors, strict=True):
        finished(folder, "randaugment", 0, error, magnitude)
    return magnitudes


def test_table_and_record_are_written_after_each_cell_and_a_full_disk_stops_nothing(tmp_path: Path) -> None:
    folder, record, said = tmp_path / "cells", tmp_path / "record.json", list[str]()
    table = folder / "table.md"

    def say(line: str) -> None:
        said.append(line)
        if "could not be written" in line:
            assert not record.exists()
            table.rmdir()

    asked = plan(folder, "base", "broken one", "broken two", export=str(record))
    comparison = Comparison(asked, say=say)
    with comparison.begin() as begun:
        assert begun.missing == 3
        finished(folder, "base")
        record.unlink()
        table.unlink()
        table.mkdir()  # so that it cannot be written
        comparison.train()
        assert comparison.problems.keys() == {"broken one 0", "broken two 0"}
        assert len(said) == 3
        assert "| base | 1 |" in table.read_text()
        assert json.loads(record.read_text())["cells"].keys() == {"base 0"}


def test_two_commands_do_not_share_a_folder(tmp_path: Path) -> None:
    first, second = (Comparison(plan(tmp_path / "cells", "base")) for _ in range(2))
    with first.begin(), pytest.raises(UserError, match="process"), second.begin():
        pass


def test_the_magnitude_of_the_lowest_validation_error_is_trained_with_all_seeds(tmp_path: Path) -> None:
    folder = tmp_path / "cells"
    asked = plan(folder, "randaugment", seeds=(0, 5))
    comparison = Comparison(asked)
    with comparison.begin():
        magnitudes = trials(folder, 0.3, 0.1, 0.1)
        finished(folder, "randaugment", 5, 0.2, magnitudes[1])
        comparison.train()  # finds every run finished
        table = comparison.write()
    assert table.magnitude == magnitudes[1]
    assert table.rows[0].errors == {0: 0.1, 5: 0.2}
    assert (comparison.problems, comparison.unfinished, table.missing) == ({}, "", 0)
    # A search remembers its trials when their directories are gone, as do search.json files of earlier versions.
    for magnitude in (magnitudes[0], magnitudes[2]):
        run_path(folder, "randaugment", 0, magnitude).rename(tmp_path / f"{magnitude}")
    saved = json.loads((folder / "search.json").read_text())
    assert [trial["validation_error"] for trial in saved["trials"]] == [0.3, 0.1, 0.1]
    del saved["seeds"]
    saved |= {"study": "madao-randaugment-0123456789ab", "own": {"0": magnitudes[0]}}
    (folder / "search.json").write_text(json.dumps(saved))
    assert trained(Comparison(asked)).magnitude == magnitudes[1]


def test_each_trial_is_the_mean_over_its_seeds(tmp_path: Path) -> None:
    folder = tmp_path / "cells"
    asked = plan(folder, "randaugment", search=SearchConfig(trials=2, seeds=2))
    comparison = Comparison(asked)
    with comparison.begin():
        magnitudes = trials(folder, 0.1, 0.2)
        for magnitude, error in zip(magnitudes, (0.4, 0.2), strict=True):
            finished(folder, "randaugment", 1, error, magnitude)
        comparison.train()
        assert comparison.write().magnitude == magnitudes[1]
    # With one seed each it is another search.
    assert trained(Comparison(plan(folder, "randaugment", search=SearchConfig(trials=2)))).magnitude == magnitudes[0]


def test_a_given_magnitude_is_not_searched_for(tmp_path: Path) -> None:
    asked = plan(tmp_path / "cells", "randaugment", search=SearchConfig(trials=0))
    given = asked.methods["randaugment"].augment.magnitude
    comparison = Comparison(asked)
    with comparison.begin() as table:
        assert table.magnitude == given
        finished(tmp_path / "cells", "randaugment", 0, 0.1, given)
        comparison.train()
        assert comparison.write().rows[0].errors == {0: 0.1}


def test_commands_share_a_search_through_a_storage(tmp_path: Path) -> None:
    pytest.importorskip("optuna")
    shared = SearchConfig(trials=3, storage=f"sqlite:///{tmp_path / 'shared.db'}")
    first, second = (Comparison(plan(tmp_path / name, "randaugment", search=shared)) for name in "ab")
    with second.begin():
        with first.begin():
            magnitudes = trials(tmp_path / "a", 0.3, 0.2, 0.1)
            first.train()
        # The second one has no trial left to train, and trains with the magnitude that the first one found.
        finished(tmp_path / "b", "randaugment", 0, 0.1, magnitudes[2])
        second.train()
        assert second.write().magnitude == magnitudes[2]
        assert second.unfinished == ""


def test_a_trial_that_runs_elsewhere_is_named(tmp_path: Path) -> None:
    pytest.importorskip("optuna")
    storage = f"sqlite:///{tmp_path / 'shared.db'}"
    asked = plan(tmp_path / "a", "randaugment", search=SearchConfig(trials=1, storage=storage))
    comparison = Comparison(asked)
    with comparison.begin():
        saved = comparison._search
        assert isinstance(saved, SharedSearch)
        other = SharedSearch(tmp_path / "search.json", 1, 1, storage, saved.name)
        other.next()
        comparison.train()
        assert "trial 0 of the search" in comparison.unfinished
        assert f"--study-name {saved.name} --trial-number 0 --state fail" in comparison.unfinished
        assert not (tmp_path / "a" / "search.json").exists()
