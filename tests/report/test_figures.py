from pathlib import Path

from madao.report.chart_model import Chart, Panel, Series
from madao.report.figures import _draw, write_figures
from madao.report.run import read_run
from madao.report.run_charts import charts_of
from tests.helpers.run_directories import write_run


def test_axes_are_those_of_the_page(tmp_path: Path) -> None:
    charts = {chart.key: chart for chart in charts_of(read_run(write_run(tmp_path / "run")))}
    assert _draw(charts["norms"]).axes[0].get_yscale() == "log"
    assert _draw(charts["loss"]).axes[0].get_yscale() == "linear"
    rotate = _draw(charts["magnitude"]).axes[4]
    assert rotate.get_title(loc="left") == "Rotate\ndegrees"
    assert rotate.get_ylim() == (0, 30)
    assert _draw(charts["error"]).axes[0].yaxis.get_major_formatter().format_pct(0.25, 1) == "25 %"
    selection = _draw(charts["selection"])
    assert len(selection.axes) == 2
    assert len(selection.axes[0].get_lines()) == 14
    assert selection.axes[0].patches, "warm-up is not shaded"


def test_names_are_not_read_as_formulas(tmp_path: Path) -> None:
    series = [Series(name, [0, 1], [1.0, 2.0], style) for style, name in enumerate(("x$_$ y", "$"))]
    chart = Chart("a", "costs $5 and $6", "", [Panel(series, "$x_")], ticks=["a$^", "b"])
    paths = write_figures({"a": chart}, tmp_path)
    assert [path.name for path in paths] == ["a.png", "a.svg"]
    assert all(path.stat().st_size > 1000 for path in paths)
