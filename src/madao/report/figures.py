"""Charts as PNG and SVG files, for papers and slides.

On the page, chart.js draws the same `Chart`s. There they show values under the pointer, hide series, fit a phone and
follow dark mode, which an embedded SVG cannot do.
"""

import math
from pathlib import Path
from typing import Any

from madao.files import replacing
from madao.report.chart_model import COLOURS, Chart, Panel, Series

# The colours of page.css on white.
_PALETTE = ("#0072b2", "#d55e00", "#009e73", "#b8568e", "#c98500", "#3a9bdc", "#33373d")
_DASHES: tuple[Any, ...] = ("-", (0, (5, 2.5)), (0, (1.5, 2)), (0, (6, 2, 1.5, 2)), (0, (8, 3)), (0, (3, 1.5)))


def write_figures(charts: dict[str, Chart], folder: Path) -> list[Path]:
    """Write one PNG and one SVG for each chart.

    Args:
        charts: The charts by the names of their files.
        folder: The folder, which is created.

    Returns:
        The files written.
    """
    # Not pyplot, which needs a screen and changes the user's settings.
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    written = []
    for place, chart in charts.items():
        figure = _draw(chart)
        FigureCanvasAgg(figure)
        for suffix in (".png", ".svg"):
            path = folder / (place + suffix)
            metadata = {"Date": None} if suffix == ".svg" else None
            with replacing(path) as file:
                figure.savefig(file, format=suffix[1:], dpi=110, metadata=metadata)
            figure.set_layout_engine("none")  # the SVG is laid out as the PNG was
            written.append(path)
    return written


def _draw(chart: Chart) -> Any:
    from matplotlib.figure import Figure

    columns = min(len(chart.panels), 4 if chart.small else 2)
    rows = math.ceil(len(chart.panels) / columns)
    width, height = (2.7, 1.9) if chart.small else (5.2, 3.4)
    names = list(dict.fromkeys(series.name for panel in chart.panels for series in panel.series))
    legend_rows = math.ceil(len(names) / max(1, round(columns * width / 1.6))) if len(names) > 1 else 0
    figure = Figure(figsize=(max(columns * width, 6), rows * height + 0.45 + 0.24 * legend_rows), layout="constrained")
    figure.suptitle(_without_formulas(chart.title), x=0.01, ha="left", fontsize=12, fontweight="bold")
    axes = figure.subplots(rows, columns, squeeze=False)
    handles: dict[str, Any] = {}
    for place, axis in enumerate(axes.flat):
        if place >= len(chart.panels):
            axis.set_visible(False)
            continue
        _draw_panel(axis, chart, chart.panels[place], handles)
        if place % columns == 0 and not chart.small:
            axis.set_ylabel(chart.y_label)
        if place // columns == rows - 1:
            axis.set_xlabel(chart.x_label)
    if len(handles) > 1:
        figure.legend(
            handles.values(),
            [_without_formulas(name) for name in handles],
            loc="outside lower left",
            ncols=max(1, round(columns * width / 1.6)),
            frameon=False,
            fontsize=8,
        )
    return figure


def _draw_panel(axis: Any, chart: Chart, panel: Panel, handles: dict[str, Any]) -> None:
    from matplotlib.ticker import PercentFormatter

    if chart.shaded is not None:
        axis.axvspan(chart.shaded[0], chart.shaded[1], color="black", alpha=0.06, lw=0)
    for series in panel.series:
        handles.setdefault(series.name, _draw_series(axis, series, bool(chart.ticks)))
    axis.set_title(_without_formulas(panel.title), fontsize=9, loc="left")
    axis.tick_params(labelsize=8)
    axis.grid(axis="y", color="#d9dce1", lw=0.7)
    axis.set_axisbelow(True)
    for side in ("top", "right", "left"):
        axis.spines[side].set_visible(False)
    if chart.logarithmic:
        axis.set_yscale("log")
    if panel.y_range is not None:
        axis.set_ylim(*panel.y_range)
    if chart.percent:
        axis.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=None, symbol=" %"))
    if chart.ticks:
        axis.set_xticks(range(len(chart.ticks)), [_without_formulas(tick) for tick in chart.ticks])


def _without_formulas(text: str) -> str:
    # matplotlib reads a formula between two dollars.
    return text.replace("$", r"\$")


def _draw_series(axis: Any, series: Series, marked: bool) -> Any:
    colour = _PALETTE[series.style % COLOURS]
    values = [math.nan if value is None else value for value in series.y]
    dashes = _DASHES[series.style // COLOURS % len(_DASHES)]
    marker = "x" if marked or len(values) == 1 else None
    (line,) = axis.plot(series.x, values, color=colour, linestyle=dashes, lw=1.6, marker=marker)
    if series.low is not None and series.high is not None:
        low, high = ([math.nan if value is None else value for value in edge] for edge in (series.low, series.high))
        axis.fill_between(series.x, low, high, color=colour, alpha=0.15, lw=0)
    return line
