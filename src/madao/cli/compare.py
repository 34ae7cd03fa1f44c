"""`madao compare`: train several methods over several seeds and tabulate them."""

import shlex
import sys

from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from madao.cli import say, with_flags
from madao.cli.compare_arguments import MORE, own_parser, read_plan
from madao.cli.dry_run import rehearse_comparison
from madao.cli.parser import without_dry_run
from madao.errors import UserError
from madao.experiments.compare_config import Plan
from madao.experiments.comparison import Comparison
from madao.experiments.table import TUNED, Table, headings, lines, note
from madao.text import counted, printable
from madao.training.interrupt import Interrupted


def command(arguments: list[str]) -> None:
    """Run `madao compare`."""
    if {"-h", "--help"} & {*arguments}:
        own_parser().print_help()
        print(MORE)
        return
    given, dry = without_dry_run(arguments)
    plan = read_plan(given)
    if dry:
        rehearse_comparison(plan)
        return
    comparison, stopped = Comparison(plan, ["madao", "compare", *arguments], _warn, say), None
    with comparison.begin() as table:
        say(_opening(plan, table))
        try:
            comparison.train()
        except Interrupted as stop:
            stopped = stop
        table = comparison.write()
        _show(table)
        report = f"; see the runs: madao report {shlex.quote(str(plan.folder))}"
        finished = any(row.errors for row in table.rows)
        say(f"wrote {plan.folder / 'table.md'} and table.json{report if finished else ''}")
        if comparison.export is not None:
            say(f"wrote {comparison.export} ({comparison.export.stat().st_size / 1000:.0f} kB)")
    if stopped is not None:
        raise Interrupted(stopped.number, "stopped; checkpoints are written: run the same command to resume")
    if comparison.problems:
        raise UserError(_failures(comparison.problems, table))
    if comparison.unfinished:
        raise UserError(comparison.unfinished)


def _warn(line: str) -> None:
    print(printable(with_flags(line)), file=sys.stderr, flush=True)


def _opening(plan: Plan, table: Table) -> str:
    """Return the line on methods and seeds. It lists the seeds, since `--seeds 3` is easily read as seed 3."""
    cells = len(plan.methods) * len(plan.seeds)
    finished = f", {cells - table.missing} of them finished" if table.missing < cells else ""
    search, tried = plan.chosen.search, ""
    if TUNED in plan.methods and search.trials and table.magnitude is None:
        times = f", {search.seeds} trainings each," if search.seeds > 1 else ""
        tried = f"; {counted(search.trials, 'magnitude')}{times} to try for {TUNED}"
    seeds = f"seed{'s' * (len(plan.seeds) > 1)} {', '.join(map(str, plan.seeds))}"
    return f"{', '.join(plan.methods)} with {seeds}: {counted(cells, 'training')}{finished}{tried}"


def _show(table: Table) -> None:
    shown = RichTable(box=None, padding=(0, 2, 0, 0))
    for heading in headings(table):
        shown.add_column(heading, no_wrap=True)
    for line in lines(table):
        shown.add_row(*(Text(printable(cell)) for cell in line))
    console = Console(highlight=False, soft_wrap=True, width=200)  # rather too long than cut off
    console.print(shown)
    console.print(printable(with_flags(note(table))), markup=False)


def _failures(problems: dict[str, str], table: Table) -> str:
    """Return all failures in one line, with each message once."""
    by_message: dict[str, list[str]] = {}
    for name, message in problems.items():
        by_message.setdefault(message, []).append(name)
    told = "; ".join(f"{', '.join(names)}: {message}" for message, names in by_message.items())
    return f"{counted(table.missing, 'cell')} missing; {told}"
