"""The table of methods and seeds, against scipy."""

import json
from pathlib import Path

import pytest
from scipy import stats

from madao.experiments.table import (
    Row,
    Table,
    headings,
    lines,
    markdown,
    note,
    read_runs,
    run_path,
    tabulate,
    to_dict,
)
from madao.report.compare import Interval
from tests.helpers.run_directories import write_run

ERRORS = {
    "base": {0: 0.051, 1: 0.048, 2: 0.050, 5: 0.9},
    "randaugment": {0: 0.047, 1: 0.049, 2: 0.044},
    "learned": {2: 0.043, 1: 0.046, 0: 0.047, 7: 0.1},
}
SEEDS = dict.fromkeys(ERRORS, (0, 1, 2))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Cells of which some are finished; RandAugment's at the magnitude that was chosen, and at another."""
    path = tmp_path_factory.mktemp("cells")
    for method, errors in ERRORS.items():
        magnitude = 0.3 if method == "randaugment" else None
        for seed, error in errors.items():
            write_run(run_path(path, method, seed, magnitude), method, seed, 2, error=error)
    write_run(run_path(path, "randaugment", 0, 0.9), "randaugment", 0, 2, error=0.001)
    write_run(run_path(path, "base", 3), "base", 3, 2, ended=False)
    (path / "search.json").write_text(json.dumps({"magnitude": 0.3}))
    return path


def ends(interval: Interval | None) -> list[float]:
    assert interval is not None
    assert interval.half_width is not None
    return [interval.mean - interval.half_width, interval.mean + interval.half_width]


def rows(table: Table) -> dict[str, Row]:
    return {row.method: row for row in table.rows}


def test_means_and_intervals_are_scipys(folder: Path) -> None:
    found = rows(tabulate(read_runs(folder), SEEDS))
    for method, errors in ERRORS.items():
        assert found[method].errors == errors
        expected = stats.ttest_1samp([*errors.values()], 0).confidence_interval(0.95)
        assert ends(found[method].error) == pytest.approx([expected.low, expected.high], rel=1e-9)


@pytest.mark.parametrize(
    ("method", "other"), [("learned", "base"), ("learned", "randaugment"), ("base", "randaugment")]
)
def test_differences_are_scipys_paired_ones(folder: Path, method: str, other: str) -> None:
    difference = rows(tabulate(read_runs(folder), SEEDS))[method].differences[other]
    common = sorted(ERRORS[method].keys() & ERRORS[other].keys())
    pairs = [[ERRORS[name][seed] for seed in common] for name in (method, other)]
    expected = stats.ttest_rel(*pairs).confidence_interval(0.95)
    assert difference is not None
    assert difference.half_width is not None
    assert difference.count == 3
    assert difference.mean - difference.half_width == pytest.approx(expected.low, rel=1e-9)
    assert difference.mean + difference.half_width == pytest.approx(expected.high, rel=1e-9)


def test_one_seed_has_no_interval_and_a_method_no_difference_to_itself(folder: Path) -> None:
    cells = {method: {0: runs[0]} for method, runs in read_runs(folder).items()}
    found = rows(tabulate(cells, SEEDS))
    assert found["base"].error is not None
    assert found["base"].error.half_width is None
    assert found["base"].differences["base"] is None
    assert found["learned"].differences["base"] is not None
    assert [line[2:5] for line in lines(tabulate(cells, SEEDS))] == [
        ["5.10", "–", "+0.40"],
        ["4.70", "−0.40", "–"],
        ["4.70", "−0.40", "+0.00"],
    ]


def test_what_is_missing_is_said(folder: Path) -> None:
    table = tabulate(read_runs(folder), {"uniform": [0, 1], "base": [0, 3]}, 0.3)
    assert [(row.method, row.missing) for row in table.rows][:2] == [("uniform", [0, 1]), ("base", [3])]
    assert lines(table)[0] == ["uniform", "0 of 2", "–", "–", "–", "–", "–", "–"]
    assert lines(table)[1][1] == "4 of 5"
    text = markdown(table)
    assert text.startswith("| method | seeds | test error, % |")
    assert "magnitude: 0.3" in text
    assert to_dict(table)["rows"][0]["mean"] is None
    json.dumps(to_dict(table), allow_nan=False)


def test_a_column_of_differences_for_each_control_that_is_there(folder: Path, tmp_path: Path) -> None:
    assert headings(tabulate(read_runs(folder), SEEDS))[3:5] == ["− base", "− randaugment"]
    for seed, (alike, learned) in enumerate([(0.04, 0.03), (0.05, 0.03)]):
        write_run(run_path(tmp_path, "uniform", seed), "uniform", seed, 2, error=alike)
        write_run(run_path(tmp_path, "learned", seed), "learned", seed, 2, error=learned)
    table = tabulate(read_runs(tmp_path), {"uniform": [0, 1], "learned": [0, 1]})
    assert headings(table)[2:] == ["test error, %", "− uniform", "minutes", "MiB"]
    assert [line[3] for line in lines(table)] == ["–", "−1.50 ± 6.35"]
    assert {len(line) for line in lines(table)} == {len(headings(table))}
    assert "| − uniform |" in markdown(table)


def test_only_finished_cells_of_the_magnitude_that_was_chosen_count(folder: Path, tmp_path: Path) -> None:
    assert read_runs(folder)["randaugment"].keys() == {0, 1, 2}
    assert read_runs(folder)["base"].keys() == {0, 1, 2, 5}, "the cell of seed 3 has no result"
    write_run(run_path(tmp_path, "randaugment", 0, 0.9), "randaugment", 0, 2)
    assert read_runs(tmp_path) == {}


def test_time_and_memory(folder: Path) -> None:
    cells = read_runs(folder, ["learned"])
    run = cells["learned"][0]
    row = tabulate(cells, SEEDS).rows[-1]
    assert row.minutes == pytest.approx(sum(value or 0 for value in run.timing["seconds"]) / 60)
    assert row.memory == max(value or 0 for name in ("memory_mib", "outer_memory_mib") for value in run.timing[name])


def test_what_took_no_outer_step_is_told(tmp_path: Path) -> None:
    for method, seed, learned in (("uniform", 0, False), ("learned", 0, True), ("s60", 0, False), ("s60", 1, True)):
        name = "uniform" if method == "uniform" else "learned"
        write_run(run_path(tmp_path, method, seed), name, seed, 2, learned=learned)
    table = tabulate(read_runs(tmp_path), {})
    assert to_dict(table)["unlearned"].keys() == {"s60 0"}
    assert "The policy of s60 0 did not change" in note(table)
    assert "outer step" not in note(tabulate(read_runs(tmp_path, ["uniform", "learned"]), {}))


def test_without_a_test_set_validation_errors_are_compared(tmp_path: Path) -> None:
    path = write_run(tmp_path / "base" / "0", "base", error=0.04)
    result = json.loads((path / "result.json").read_text())
    (path / "result.json").write_text(json.dumps({**result, "test_error": None}))
    table = tabulate(read_runs(tmp_path), {"base": [0]})
    assert headings(table)[2] == "validation error, %"
    assert "no test set" in note(table)
    assert "no test set" not in note(Table("test error", []))
    assert lines(table)[0][2] == "4.00"
