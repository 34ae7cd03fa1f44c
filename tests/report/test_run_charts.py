"""From a run to its charts."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from madao.report.chart_model import COLOURS, operation_style, thinned
from madao.report.page import _cost
from madao.report.run import read_run
from madao.report.run_charts import charts_of, cost_charts, health_charts, learning_charts, policy_charts
from tests.helpers.run_directories import write_run


def test_every_chart_is_there_with_a_caption(tmp_path: Path) -> None:
    charts = charts_of(read_run(write_run(tmp_path / "run")))
    assert [chart.key for chart in charts] == [
        *("selection", "application", "magnitude", "loss", "error", "norms", "signal", "residual", "time", "memory"),
    ]
    assert all(len(chart.caption) > 60 and chart.title for chart in charts)


def test_selection_has_a_panel_a_stage_and_warm_up_in_grey(tmp_path: Path) -> None:
    selection, application, _ = policy_charts(read_run(write_run(tmp_path / "run")))
    assert [panel.title for panel in selection.panels] == ["Stage 1", "Stage 2"]
    assert selection.shaded == (0.0, 2.0, "warm-up")
    by_name = {series.name: series for series in selection.panels[1].series}
    assert len(by_name) == 14
    assert by_name["Rotate"].y[0] == pytest.approx(1 / 14)
    assert by_name["Rotate"].y[-1] == pytest.approx(np.exp(4) / (np.exp(4) + 13))
    assert application.panels[0].y_range == (0.0, 1.0)


def test_magnitudes_are_in_real_units(tmp_path: Path) -> None:
    magnitude = policy_charts(read_run(write_run(tmp_path / "run")))[2]
    panels = {panel.title.split("\n")[0]: panel for panel in magnitude.panels}
    assert len(panels) == 11
    rotate = panels["Rotate"]
    assert rotate.title == "Rotate\ndegrees"
    assert rotate.y_range == (0.0, 30.0)
    assert rotate.series[0].y[-1] == pytest.approx(30 / (1 + np.exp(-1.5)))
    assert panels["Solarize"].y_range == (256.0, 0.0)
    assert panels["Brightness"].series[0].y[0] == pytest.approx(1 + 1 / (1 + np.exp(-0.5)))


def test_validation_is_joined_over_epochs_without_an_evaluation(tmp_path: Path) -> None:
    path = write_run(tmp_path / "run")
    lines = (path / "metrics.csv").read_text().splitlines()
    cells = lines[3].split(",")
    cells[5] = cells[6] = ""
    (path / "metrics.csv").write_text("\n".join([*lines[:3], ",".join(cells), *lines[4:]]) + "\n")
    loss, error = learning_charts(read_run(path))
    training, validation, test = loss.panels[0].series
    assert training.x == [1, 2, 3, 4, 5, 6, 7, 8]
    assert validation.x == [1, 2, 4, 5, 6, 7, 8]
    assert (test.x, test.y) == ([8.0], [0.3])
    assert error.percent


def test_time_of_the_policy_is_taken_off_that_of_training(tmp_path: Path) -> None:
    time, _ = cost_charts(read_run(write_run(tmp_path / "run")))
    training, policy = time.panels[0].series
    assert training.y == [2.0] * 8
    assert policy.y == [1.0] * 8


def test_older_runs_have_the_charts_they_have_data_for(tmp_path: Path) -> None:
    path = write_run(tmp_path / "run")
    for name in ("outer.csv", "trajectory.jsonl"):
        (path / name).unlink()
    rows = [line.split(",")[:4] for line in (path / "timing.csv").read_text().splitlines()]
    (path / "timing.csv").write_text("".join(",".join(row) + "\n" for row in rows))
    run = read_run(path)
    assert [chart.key for chart in charts_of(run)] == ["loss", "error", "time"]
    assert not health_charts(run)


def test_neighbours_in_the_table_share_a_colour_and_no_two_operations_look_the_same() -> None:
    styles = [operation_style(index) for index in range(28)]
    assert len(set(styles)) == 28
    assert all(styles[i] % COLOURS == styles[i + 1] % COLOURS for i in range(0, 28, 2))


def test_many_points_are_averaged() -> None:
    x, y = thinned(range(7), [1.0, 3.0, None, 5.0, None, None, 2.0], most=4)
    assert x == [0.5, 2.5, 4.5, 6.0]
    assert y == [2.0, 5.0, None, 2.0]
    assert thinned([1, 2], [3.0, None]) == ([1, 2], [3.0, None])


def test_waiting_for_images_is_in_the_text_and_in_the_chart(tmp_path: Path) -> None:
    write_run(tmp_path / "fast")
    fast = read_run(tmp_path / "fast")
    assert "waited" not in _cost(fast)
    epochs = len(fast.timing["seconds"])
    waits: dict[str, list[float | None]] = {
        "waiting_seconds": [1.5] * epochs,
        "model_images_per_second": [600.0] * epochs,
    }
    starving = dataclasses.replace(fast, timing={**fast.timing, **waits})
    assert (
        "The model waited for images 50&nbsp;% of the time: in the last epoch it got 300 of the 600 images/s"
        in _cost(starving)
    )
    names = [series.name for series in cost_charts(starving)[0].panels[0].series]
    assert names[-1] == "waiting for images"
    assert "waiting for images" not in [series.name for series in cost_charts(fast)[0].panels[0].series]
