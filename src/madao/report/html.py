"""HTML helpers that every part of the page uses."""

import html
import re
from collections.abc import Iterable, Sequence

from madao.report.chart_model import Chart


def escaped(value: object) -> str:
    """Escape text for HTML. A number and its percent sign stay on one line."""
    return html.escape(str(value)).replace(" %", "&nbsp;%")


def warnings(texts: Sequence[str]) -> str:
    """Return each text as a paragraph. Settings in backticks become code."""
    return "".join(f'<p class="warning">{with_code(text)}</p>' for text in texts)


def with_code(text: str) -> str:
    """Escape a text and show its backticks as code."""
    return re.sub("`([^`]+)`", r"<code>\1</code>", escaped(text))


def figures(found: Iterable[Chart], prefix: str, charts: dict[str, Chart]) -> str:
    """Return a figure for each chart, which the script draws into.

    Args:
        found: The charts.
        prefix: The prefix of their keys, so that several runs fit into one page.
        charts: Collects the charts by the name of their place.
    """
    texts = []
    for chart in found:
        place = prefix + chart.key
        charts[place] = chart
        texts.append(
            f'<figure data-chart="{escaped(place)}"><h3>{escaped(chart.title)}</h3><div class="chart"></div>'
            f"<figcaption>{escaped(chart.caption)}</figcaption>{_numbers(chart)}</figure>"
        )
    return "\n".join(texts)


def _numbers(chart: Chart) -> str:
    """Return a table of the first and last value of each line, for readers who cannot hover."""
    rows = []
    for panel in chart.panels:
        for series in panel.series:
            known = [value for value in series.y if value is not None]
            if known:
                name = f"{panel.title}: {series.name}" if panel.title else series.name
                cells = "".join(f"<td>{escaped(_value(value, chart.percent))}</td>" for value in (known[0], known[-1]))
                rows.append(f'<tr><th scope="row">{escaped(name)}</th>{cells}</tr>')
    return (
        '<details class="numbers"><summary>Numbers</summary><div class="wide" tabindex="0"><table><thead><tr><th></th>'
        f'<th scope="col">first</th><th scope="col">last</th></tr></thead><tbody>{"".join(rows)}</tbody></table></div>'
        "</details>"
    )


def _value(value: float, percent: bool) -> str:
    return f"{100 * value:.2f} %" if percent else f"{value:.4g}"
