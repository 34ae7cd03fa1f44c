"""Means, intervals and paired differences, against values worked out by hand."""

import math
from pathlib import Path
from typing import Any

import pytest

from madao.config.train_config import AugmentConfig, OuterConfig
from madao.report.compare import compare, comparison_charts, difference, interval
from madao.report.run import Run, read_run
from tests.helpers.run_directories import write_run


def test_the_interval_is_students() -> None:
    found = interval([1.0, 2.0, 3.0, 4.0])
    # t for 97.5 % and 3 degrees of freedom is 3.182446; the deviation is √(5/3).
    assert found.mean == 2.5
    assert found.half_width == pytest.approx(3.182446 * math.sqrt(5 / 3) / 2, rel=1e-6)
    assert interval([0.7]).half_width is None


def test_differences_are_paired_by_seed() -> None:
    found = difference({0: 1.0, 1: 2.0, 2: 4.0, 7: 9.0}, {2: 3.0, 1: 2.5, 0: 0.5, 8: 0.0})
    # Differences 0.5, −0.5, 1: mean 1/3, deviation 0.7637626, t = 0.755929 with 2 degrees of freedom.
    assert found.mean is not None
    assert found.mean.mean == pytest.approx(1 / 3)
    assert found.mean.count == 3
    assert found.p_value == pytest.approx(0.528595, abs=1e-5)


def test_a_test_needs_two_seeds_and_some_spread() -> None:
    assert difference({0: 1.0}, {0: 2.0}).p_value is None
    assert difference({0: 1.0, 1: 2.0}, {0: 2.0, 1: 3.0}).p_value is None
    assert difference({0: 1.0}, {1: 2.0}).mean is None


def runs(folder: Path, *rows: tuple[str, int, float], **changes: Any) -> list[Run]:
    found = []
    for number, (method, seed, error) in enumerate(rows):
        path = folder / f"{number}"
        found.append(read_run(write_run(path, method, seed, epochs=3, error=error, **changes)))
    return found


ROWS = [("learned", 0, 0.02), ("base", 0, 0.05), ("learned", 1, 0.03), ("base", 1, 0.05), ("uniform", 1, 0.04)]


def test_runs_are_grouped_by_method_and_standard_comes_first(tmp_path: Path) -> None:
    (found,) = compare(runs(tmp_path, *ROWS))
    assert found.measure == "test error"
    assert found.problem == "digits (rotate planted), default model, 3 epochs"
    rows = found.rows()
    assert [(group.label, mean.count) for group, mean, _ in rows] == [("base", 2), ("uniform", 1), ("learned", 2)]
    assert rows[0][2] is None
    assert rows[2][1].mean == pytest.approx(0.025)
    assert rows[2][2] is not None
    assert rows[2][2].mean is not None
    assert rows[2][2].mean.mean == pytest.approx(-0.025)


def test_settings_of_a_method_tell_its_groups_apart(tmp_path: Path) -> None:
    first = runs(tmp_path / "a", ("learned", 0, 0.02))
    other = runs(tmp_path / "b", ("learned", 0, 0.03), outer=OuterConfig(every=7, warmup=2))
    (found,) = compare([*first, *other])
    assert [group.label for group in found.groups] == ["learned, outer.every 2", "learned, outer.every 7"]


def test_settings_of_the_policy_do_not_tell_standard_runs_apart(tmp_path: Path) -> None:
    first = runs(tmp_path / "a", ("base", 0, 0.02))
    other = runs(tmp_path / "b", ("base", 1, 0.03), outer=OuterConfig(every=7))
    (found,) = compare([*first, *other])
    assert len(found.groups) == 1


def test_other_problems_are_not_compared(tmp_path: Path) -> None:
    first = runs(tmp_path / "a", ("base", 0, 0.02), ("learned", 0, 0.01))
    other = runs(tmp_path / "b", ("base", 0, 0.5), ("learned", 0, 0.4), batch_size=32)
    alone = runs(tmp_path / "c", ("base", 0, 0.5), batch_size=16)
    found = compare([*first, *other, *alone])
    assert [len(each.groups) for each in found] == [2, 2]
    assert "batch_size 128" in found[0].problem
    assert "batch_size 32" in found[1].problem


def test_runs_that_have_not_ended_are_left_out_beside_those_that_have(tmp_path: Path) -> None:
    first = runs(tmp_path / "a", ("base", 0, 0.02))
    other = runs(tmp_path / "b", ("learned", 0, 0.01), ended=False)
    (found,) = compare([*first, *other])
    assert found.measure == "test error"
    assert [group.label for group in found.groups] == ["base"]
    assert [run.path for run in found.left_out] == [other[0].path]


def test_without_any_test_error_validation_errors_are_compared_at_the_last_epoch_all_have(tmp_path: Path) -> None:
    first = runs(tmp_path / "a", ("base", 0, 0.02), ended=False)
    other = write_run(tmp_path / "b", "learned", 0, epochs=3, error=0.01, ended=False)
    lines = (other / "metrics.csv").read_text().splitlines(keepends=True)
    (other / "metrics.csv").write_text("".join(lines[:-1]))
    (found,) = compare([*first, read_run(other)])
    assert found.measure == "validation error at epoch 2"
    assert found.groups[0].errors[0] == pytest.approx(0.02 * (1 + 3 * math.exp(-2)))
    assert found.groups[1].errors[0] == pytest.approx(0.01 * (1 + 3 * math.exp(-2)))


def test_a_seed_that_ran_twice_counts_once(tmp_path: Path) -> None:
    (found,) = compare(runs(tmp_path, ("base", 0, 0.02), ("base", 0, 0.04), ("base", 1, 0.05)))
    ((_, mean, _),) = found.rows()
    assert mean.count == 2
    assert mean.mean == pytest.approx(0.04)
    (curve,) = comparison_charts(found, 1)[0].panels[0].series
    assert curve.y[-1] == pytest.approx(0.04 * (1 + 3 * math.exp(-3)))
    # Of 0.03 and 0.05: t for 97.5 % and one degree of freedom is 12.7062, the error of the mean 0.01.
    assert curve.high is not None
    assert curve.high[-1] == pytest.approx((0.04 + 0.127062) * (1 + 3 * math.exp(-3)), rel=1e-5)


def test_one_seed_says_little(tmp_path: Path) -> None:
    (found,) = compare(runs(tmp_path, ("base", 0, 0.02), ("uniform", 0, 0.04)))
    assert comparison_charts(found, 1)[1].caption.endswith("however far apart they lie; one seed says little.")


def test_other_images_are_another_problem(tmp_path: Path) -> None:
    found = runs(tmp_path, ("base", 0, 0.02), ("base", 1, 0.04))
    assert len(compare(found)) == 1
    split = tmp_path / "1" / "split.json"
    split.write_text(split.read_text().replace("owl", "cow"))
    assert not compare([found[0], read_run(tmp_path / "1")])


def test_a_run_of_before_a_setting_was_there_is_like_one_that_leaves_it_at_nothing(tmp_path: Path) -> None:
    found = runs(tmp_path, ("base", 0, 0.02), ("base", 1, 0.04))
    config = tmp_path / "1" / "config.yaml"
    older = config.read_text().replace("  max_images: null\n", "")
    assert older != config.read_text()
    config.write_text(older)
    assert [len(group.runs) for group in compare([found[0], read_run(tmp_path / "1")])[0].groups] == [2]
    config.write_text(older.replace("data:\n", "data:\n  images: 40\n"))
    assert not compare([found[0], read_run(tmp_path / "1")])


def test_standard_stays_the_reference_where_there_are_two_of_it(tmp_path: Path) -> None:
    first = runs(tmp_path / "a", ("uniform", 0, 0.02), ("base", 0, 0.03))
    other = runs(tmp_path / "b", ("base", 0, 0.04), augment=AugmentConfig(method="base", cutout=8))
    (found,) = compare([*first, *other])
    labels = [group.label for group in found.groups]
    assert labels == ["base, augment.cutout 0", "base, augment.cutout 8", "uniform"]


def test_errors_that_are_no_numbers_are_left_out(tmp_path: Path) -> None:
    found = runs(tmp_path, ("base", 0, 0.02), ("base", 1, 0.04))
    (tmp_path / "1" / "result.json").write_text('{"test_error": NaN}')
    (comparison,) = compare([found[0], read_run(tmp_path / "1")])
    assert [len(comparison.groups[0].runs), len(comparison.left_out)] == [1, 1]


def test_means_are_taken_only_where_every_run_was_measured(tmp_path: Path) -> None:
    found = runs(tmp_path, ("base", 0, 0.02), ("base", 1, 0.04))
    lines = (tmp_path / "1" / "metrics.csv").read_text().splitlines()
    cells = lines[2].split(",")
    cells[6] = ""
    (tmp_path / "1" / "metrics.csv").write_text("\n".join([*lines[:2], ",".join(cells), *lines[3:]]) + "\n")
    (comparison,) = compare([found[0], read_run(tmp_path / "1")])
    (curve,) = comparison_charts(comparison, 1)[0].panels[0].series
    assert curve.x == [1, 3]


def test_curves_have_bands_where_there_are_seeds(tmp_path: Path) -> None:
    (found,) = compare(runs(tmp_path, *ROWS))
    curves, paired = comparison_charts(found, 1)
    standard, uniform, madao = curves.panels[0].series
    assert standard.y[-1] == pytest.approx(0.05 * (1 + 3 * math.exp(-3)))
    assert uniform.low == [None, None, None]
    assert curves.panels[0].y_range == pytest.approx((0, 1.1 * standard.y[0]))  # type: ignore[operator]
    assert madao.low is not None
    assert all(value is not None and value >= 0 for value in madao.low)
    assert "of 2 seeds this happens by chance once in 4." in paired.caption
    assert paired.ticks == ["base", "uniform", "learned"]
    assert [list(series.y) for series in paired.panels[0].series] == [[0.05, None, 0.02], [0.05, 0.04, 0.03]]
