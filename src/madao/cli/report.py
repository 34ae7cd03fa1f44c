"""`madao report`: what runs found, as a page to look at."""

import time
from pathlib import Path

from madao.cli.parser import call
from madao.report import ReportError, find_runs, read_run, write_report
from madao.training.errors import UserError


def command(arguments: list[str]) -> None:
    """Write a report as the command line says."""
    call(report, "report", arguments, plain="runs")


def report(runs: list[str], out: str | None = None, figures: bool = True) -> None:
    """Write a page that shows what one or more runs found, and its figures as PNG and SVG.

    Args:
        runs: Run directories, or folders of run directories.
        out: The HTML file. By default report.html in the run directory; of several runs, in the current one.
        figures: Also write the figures as files.
    """
    started = time.monotonic()
    try:
        paths = find_runs([Path(run) for run in runs])
        found = [read_run(path) for path in paths]
        target = Path(out) if out is not None else (paths[0] if len(paths) == 1 else Path()) / "report.html"
        if target.is_dir():
            raise UserError(f"--out {out} is a folder; give the name of an HTML file")
        written = write_report(found, target, figures)
    except ReportError as error:
        raise UserError(str(error)) from None
    size = target.stat().st_size / 2**20
    about = f", and {len(written) - 1} files in {written[1].parent}" if len(written) > 1 else ""
    print(f"wrote {target} ({size:.1f} MB, {time.monotonic() - started:.1f} s){about}; open it in a browser")
