"""`madao report`: write an HTML report of runs."""

import dataclasses
import time
from pathlib import Path

from madao.cli import say
from madao.cli.parser import call
from madao.config.train_config import from_dict, to_dict
from madao.errors import ReportError, UserError
from madao.report import Run, find_runs, read_run, write_report


def command(arguments: list[str]) -> None:
    """Run `madao report`."""
    call(report, "report", arguments, plain="runs")


def _complete(run: Run) -> Run:
    """Return a run with defaults for the settings that an older version lacked, so that both can be compared."""
    try:
        return dataclasses.replace(run, config=to_dict(from_dict(dict(run.config))))
    except UserError:  # written by a newer version
        return run


def report(runs: list[str], out: str | None = None, figures: bool = True) -> None:
    """Write an HTML report of one or more runs, and its figures as PNG and SVG files.

    Args:
        runs: Run directories, or folders of run directories.
        out: HTML file to write. By default report.html in the given folder, or in the current one for several folders.
        figures: Write the figures as files, too.
    """
    started = time.monotonic()
    found, problems = [], []
    try:
        for path in find_runs([Path(run) for run in runs]):
            try:
                found.append(_complete(read_run(path)))
            except ReportError as error:
                problems.append(str(error))
    except ReportError as error:
        raise UserError(str(error)) from None
    if not found:
        raise UserError(problems[0])
    target = Path(out) if out is not None else (Path(runs[0]) if len(runs) == 1 else Path()) / "report.html"
    if target.is_dir():
        raise UserError(f"{target} is a folder; name an HTML file with --out")
    written = write_report(found, target, figures, problems)
    for problem in problems:
        say(f"left out: {problem}")
    size = target.stat().st_size / 2**20
    about = f", and {len(written) - 1} files in {written[1].parent}" if len(written) > 1 else ""
    say(f"wrote {target} ({size:.1f} MB, {time.monotonic() - started:.1f} s){about}; open it in a browser")
