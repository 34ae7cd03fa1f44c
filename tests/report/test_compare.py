"""Means, intervals and paired differences, against values worked out by hand."""

import math
from pathlib import Path
from typing import Any

import pytest

from madao.config.train_config import AugmentConfig, OuterConfig, SpeedConfig
from madao.report.compare import Interval, compare, comparison_charts, difference, in_percent, interval
from madao.report.run import Run, read_run
from tests.helpers.run_directories import write_run


def test_the_interval_is_students() -> None:
    found = interval([1.0, 2.0, 3.0, 4.0])
    # t for 97.5 % and 3 degrees of freedom is 3.182446; the deviation is √(5/3).
    assert found.mean == 2.5
    assert found.half_width == pytest.approx(3.182446 * math.sqrt(5 / 3) / 2, rel=1e-6)
    assert interval([0.7]).half_width is None


def test_percentages_have_two_digits_and_a_sign_where_asked() -> None:
    assert in_percent(None) == "–"
    assert in_percent(Interval(0.12345, None, 1)) == "12.35"
    assert in_percent(Interval(-0.012, 0.00456, 3), signed=True) == "−1.20 ± 0.46"
    assert in_percent(Interval(0.012, 0.1, 3), signed=True) == "+1.20 ± 10.00"


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


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def curve(error: float, epoch: int) -> float:
    """The validation error of `write_run`."""
    return error * (1 + 3 * math.exp(-epoch))


def test_runs_are_grouped_by_method_and_compared_with_standard(tmp_path: Path) -> None:
    (found,) = compare(runs(tmp_path, *ROWS))
    assert (found.measure, found.left_out) == ("test error", [])
    assert found.problem.startswith("digits")
    rows = found.rows()
    assert [(group.label, mean.count) for group, mean, _ in rows] == [("base", 2), ("uniform", 1), ("learned", 2)]
    assert rows[0][2] is None
    assert rows[2][1].mean == pytest.approx(0.025)
    assert rows[2][2] is not None
    assert rows[2][2].mean is not None
    assert rows[2][2].mean.mean == pytest.approx(-0.025)


@pytest.mark.parametrize(
    ("method", "changes", "labels"),
    [
        ("learned", {"outer": OuterConfig(every=7, warmup=2)}, ["learned, outer.every 2", "learned, outer.every 7"]),
        ("base", {"outer": OuterConfig(every=7)}, ["base"]),  # which has no outer steps
        ("base", {"augment": AugmentConfig("base", cutout=8)}, ["augment.cutout 0", "augment.cutout 8"]),
        ("base", {"device": "cpu", "speed": SpeedConfig(compile=True)}, ["base"]),
    ],
)
def test_settings_that_matter_tell_groups_of_a_method_apart(
    tmp_path: Path, method: str, changes: dict[str, Any], labels: list[str]
) -> None:
    first = runs(tmp_path / "a", ("uniform", 0, 0.02), (method, 0, 0.02))
    (found,) = compare([*first, *runs(tmp_path / "b", (method, 1, 0.03), **changes)])
    own = [group.label.removeprefix("base, ") for group in found.groups if group.label != "uniform"]
    assert own == labels
    if method == "base":
        assert found.groups[-1].label == "uniform", "the reference comes first"


def test_other_problems_are_not_compared(tmp_path: Path) -> None:
    first = runs(tmp_path / "a", ("base", 0, 0.02), ("learned", 0, 0.01))
    other = runs(tmp_path / "b", ("base", 0, 0.5), ("learned", 0, 0.4), batch_size=32)
    alone = runs(tmp_path / "c", ("base", 0, 0.5), batch_size=16)
    found = compare([*first, *other, *alone])
    assert [len(each.groups) for each in found] == [2, 2]
    assert "batch_size 128" in found[0].problem
    assert "batch_size 32" in found[1].problem


def test_other_images_are_another_problem(tmp_path: Path) -> None:
    found = runs(tmp_path, ("base", 0, 0.02), ("base", 1, 0.04))
    assert len(compare(found)) == 1
    edit(tmp_path / "1" / "split.json", "owl", "cow")
    assert not compare([found[0], read_run(tmp_path / "1")])


def test_a_run_of_a_version_without_a_setting_is_like_one_that_leaves_it_out(tmp_path: Path) -> None:
    found = runs(tmp_path, ("base", 0, 0.02), ("base", 1, 0.04))
    config = tmp_path / "1" / "config.yaml"
    edit(config, "  max_images: null\n", "")
    assert [len(group.runs) for group in compare([found[0], read_run(tmp_path / "1")])[0].groups] == [2]
    edit(config, "data:\n", "data:\n  max_images: 40\n")
    assert not compare([found[0], read_run(tmp_path / "1")])


@pytest.mark.parametrize("result", [None, '{"test_error": NaN}'])
def test_runs_without_a_test_error_are_left_out_beside_runs_with_one(tmp_path: Path, result: str | None) -> None:
    first = runs(tmp_path / "a", ("base", 0, 0.02))
    (other,) = runs(tmp_path / "b", ("learned", 0, 0.01), ended=False)
    if result is not None:
        (other.path / "result.json").write_text(result)
    (found,) = compare([*first, read_run(other.path)])
    assert found.measure == "test error"
    assert [group.label for group in found.groups] == ["base"]
    assert [run.path for run in found.left_out] == [other.path]


def test_without_any_test_error_the_last_common_validation_error_counts(tmp_path: Path) -> None:
    first = runs(tmp_path / "a", ("base", 0, 0.02), ended=False)
    other = write_run(tmp_path / "b", "learned", 0, epochs=3, error=0.01, ended=False)
    lines = (other / "metrics.csv").read_text().splitlines(keepends=True)
    (other / "metrics.csv").write_text("".join(lines[:-1]))
    (found,) = compare([*first, read_run(other)])
    assert found.measure == "validation error at epoch 2"
    assert [group.errors[0] for group in found.groups] == pytest.approx([curve(0.02, 2), curve(0.01, 2)])


def test_a_seed_that_ran_twice_counts_once(tmp_path: Path) -> None:
    (found,) = compare(runs(tmp_path, ("base", 0, 0.02), ("base", 0, 0.04), ("base", 1, 0.05)))
    ((_, mean, _),) = found.rows()
    assert mean.count == 2
    assert mean.mean == pytest.approx(0.04)
    (line,) = comparison_charts(found, 1)[0].panels[0].series
    assert line.y[-1] == pytest.approx(curve(0.04, 3))
    # Of 0.03 and 0.05: t for 97.5 % and one degree of freedom is 12.7062, the error of the mean 0.01.
    assert line.high is not None
    assert line.high[-1] == pytest.approx(curve(0.04 + 0.127062, 3), rel=1e-5)


def test_means_are_taken_only_where_every_run_was_measured(tmp_path: Path) -> None:
    found = runs(tmp_path, ("base", 0, 0.02), ("base", 1, 0.04))
    lines = (tmp_path / "1" / "metrics.csv").read_text().splitlines()
    cells = lines[2].split(",")
    cells[6] = ""
    (tmp_path / "1" / "metrics.csv").write_text("\n".join([*lines[:2], ",".join(cells), *lines[3:]]) + "\n")
    (comparison,) = compare([found[0], read_run(tmp_path / "1")])
    (line,) = comparison_charts(comparison, 1)[0].panels[0].series
    assert line.x == [1, 3]


def test_curves_have_bands_and_seeds_join_methods(tmp_path: Path) -> None:
    (found,) = compare(runs(tmp_path, *ROWS))
    curves, paired = comparison_charts(found, 1)
    base, uniform, learned = curves.panels[0].series
    assert base.y[-1] == pytest.approx(curve(0.05, 3))
    assert uniform.low == [None, None, None]
    assert curves.panels[0].y_range == pytest.approx((0, 1.1 * base.y[0]))  # type: ignore[operator]
    assert learned.low is not None
    assert all(value is not None and value >= 0 for value in learned.low)
    assert "once in 4." in paired.caption
    assert paired.ticks == ["base", "uniform", "learned"]
    assert [list(series.y) for series in paired.panels[0].series] == [[0.05, None, 0.02], [0.05, 0.04, 0.03]]
