"""The report of a run whose model waited for images."""

import dataclasses
from pathlib import Path

from madao.report import read_run
from madao.report.page import _cost
from madao.report.run_charts import cost_charts
from tests.helpers.run_directories import write_run


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
    assert "The model waited for its images 50&nbsp;% of the time: in the last epoch 300 images/s of 600" in _cost(
        starving
    )
    names = [series.name for series in cost_charts(starving)[0].panels[0].series]
    assert names[-1] == "waiting for images"
    assert "waiting for images" not in [series.name for series in cost_charts(fast)[0].panels[0].series]
