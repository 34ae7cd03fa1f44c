"""The files of a report."""

from collections.abc import Sequence
from pathlib import Path

from madao.files import replacing
from madao.report.compare import compare
from madao.report.figures import write_figures
from madao.report.page import page
from madao.report.run import Run


def write_report(runs: Sequence[Run], path: Path, figures: bool = True, left_out: Sequence[str] = ()) -> list[Path]:
    """Write a page, and its figures to the folder `NAME-figures` beside it.

    Args:
        runs: The runs to show. Several of them are compared, and only the figures of the comparison become files.
        path: The HTML file.
        figures: Whether to write figures as files.
        left_out: Messages about runs that cannot be shown.

    Returns:
        The files written, the page first.
    """
    made = page(runs, compare(runs) if len(runs) > 1 else [], left_out)
    with replacing(path) as file:
        # File systems allow names that are not valid text.
        file.write(made.text.encode(errors="backslashreplace"))
    charts = made.charts if len(runs) == 1 else {key: chart for key, chart in made.charts.items() if chart.key == key}
    drawn = write_figures(charts, path.with_name(f"{path.stem}-figures")) if figures else []
    return [path, *drawn]
