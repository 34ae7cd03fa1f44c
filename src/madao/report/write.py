"""From run directories to a file people open."""

from collections.abc import Sequence
from pathlib import Path

from madao.report.compare import compare
from madao.report.figures import write_figures
from madao.report.page import page
from madao.report.run import Run


def write_report(runs: Sequence[Run], path: Path, figures: bool = True, left_out: Sequence[str] = ()) -> list[Path]:
    """Write the page to `path` and its figures to the folder `NAME-figures` beside it; returns what was written.

    `left_out` says what could not be shown. Of several runs the figures are those that compare them: a run's own come
    with the report of that run.
    """
    made = page(runs, compare(runs) if len(runs) > 1 else [], left_out)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(path.name + ".part")
    try:
        # Names that are no text, as file systems allow, are shown as they can be.
        temporary.write_text(made.text, encoding="utf-8", errors="backslashreplace")
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    charts = made.charts if len(runs) == 1 else {key: chart for key, chart in made.charts.items() if chart.key == key}
    drawn = write_figures(charts, path.with_name(f"{path.stem}-figures")) if figures else []
    return [path, *drawn]
