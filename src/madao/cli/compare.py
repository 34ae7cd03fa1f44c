"""`madao compare`: methods over seeds, as one table."""

import dataclasses
import json
import math
import shlex
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import yaml
from rich.console import Console
from rich.table import Table as RichTable

from madao.cli.compare_arguments import MORE, own_parser, read_plan
from madao.config.train_config import DataConfig, Plain, TrainConfig, from_dict, to_dict
from madao.errors import UserError
from madao.experiments.compare_config import Plan
from madao.experiments.dataset_hash import fingerprint
from madao.experiments.jobs import Job, JobPool
from madao.experiments.magnitude_search import Search, optuna_library, study_name, write_search
from madao.experiments.published import is_record, record, without_paths
from madao.experiments.table import (
    SEARCH,
    TUNED,
    Table,
    chosen_magnitude,
    headings,
    lines,
    markdown,
    note,
    plain,
    read_cells,
    tabulate,
)
from madao.files import replacing
from madao.text import counted
from madao.training.interrupt import Interrupted
from madao.training.run.directory import RunDirectory, first_difference, lock
from madao.training.run.result import Result
from madao.training.splits import load_dataset

FILE = "compare.yaml"
_ALL = "/"
"""Stands for what cells share, beside the names of variants, none of which has it."""


def command(arguments: list[str]) -> None:
    """Compare as the command line says."""
    if {"-h", "--help"} & {*arguments}:
        own_parser().print_help()
        print(MORE)
        return
    plan = read_plan(arguments)
    folder = plan.folder
    export = None if plan.chosen.export is None else Path(plan.chosen.export)
    _check(plan)
    _exported(export)
    folder.mkdir(parents=True, exist_ok=True)
    guard = lock(folder)

    def keep() -> Table:
        """Write what there is."""
        table = _table(plan)
        if export is not None:
            _export(plan, export, arguments)
        return table

    try:
        data = _begin(plan)
        print(_opening(plan, keep()), flush=True)  # what cannot be written is found out before anything is trained
        run, stopped = _Run(plan, data, _Patient(keep)), None
        try:
            run.train()
        except Interrupted as stop:
            stopped = stop
        table = keep()
        _show(table)
        report = f"; look at the runs: madao report {shlex.quote(str(folder))}"
        print(f"wrote {folder / 'table.md'} and table.json{report if any(row.errors for row in table.rows) else ''}")
        if export is not None:
            print(f"wrote {export} ({export.stat().st_size / 1000:.0f} kB)")
    finally:
        if guard is not None:
            guard.close()
    if stopped is not None:
        raise Interrupted(stopped.number, "stopped, checkpoints are written; run the same command to go on")
    if run.several.problems:
        raise UserError(_failures(run.several.problems, table))
    if run.open:
        raise UserError(run.open)


def _opening(plan: Plan, table: Table) -> str:
    """What will be trained: a number of seeds is easily taken for one of them."""
    cells = len(plan.methods) * len(plan.seeds)
    some = f", {cells - table.missing} of them done" if table.missing < cells else ""
    search, tried = plan.chosen.search, ""
    if TUNED in plan.methods and search.trials and table.magnitude is None:
        times = f", {search.seeds} trainings each," if search.seeds > 1 else ""
        tried = f"; {counted(search.trials, 'magnitude')}{times} to be tried for {TUNED}"
    seeds = f"seed{'s' * (len(plan.seeds) > 1)} {', '.join(map(str, plan.seeds))}"
    if plan.chosen.methods is None and TUNED not in plan.methods:
        tried = f"; {TUNED} is left out, as its magnitude is searched for by Optuna: pip install 'madao[search]'"
    return f"{', '.join(plan.methods)} with {seeds}: {counted(cells, 'training')}{some}{tried}"


def _check(plan: Plan) -> None:
    """Raise where the folder holds something else, before anything is trained."""
    folder, saved = plan.folder, _saved(plan.folder)
    if TUNED in plan.methods and plan.chosen.search.trials:
        optuna_library()
    unjudged = {name: config for name, config in plan.methods.items() if not config.data.val_fraction}
    for name, config in unjudged.items():
        _check_without_validation(name, config, plan.chosen.search.trials)
    if saved is None:
        if folder.exists() and not (folder.is_dir() and {path.name for path in folder.iterdir()} <= {"lock"}):
            raise UserError(f"{folder} exists and holds no comparison; choose another --out")
        shared = plan.base.data  # a wrong folder is told once, and before there is a folder of cells
        tested = [shared] if load_dataset(shared).test is not None else []  # images may take a while to list
        for name, config in unjudged.items():
            if config.data not in tested and load_dataset(config.data).test is None:
                raise UserError(f"--data.val_fraction 0 leaves no images to judge {name} by, and there is no test set")
            tested.append(config.data)
        return
    difference = first_difference(to_dict(from_dict(saved["settings"])), _shared(plan.base))
    if difference is not None:
        key, before, now = difference
        raise UserError(
            f"the comparison in {folder} was started with {_told(key, before)}, not {_told(key, now)}; cells are only "
            "compared where they share it: choose another --out, make it a variant, or go back to what it was"
        )
    for method in plan.methods:
        for seed in plan.seeds if method != TUNED else ():
            config = plan.cell(method, seed)
            RunDirectory(Path(str(config.out))).check(config)


def _told(key: str, value: Any) -> str:
    return f"--{key} by default" if value is None else f"--{key} {value}"


def _check_without_validation(name: str, config: TrainConfig, trials: int) -> None:
    if config.augment.method == "learned":
        raise UserError(f"--data.val_fraction 0 leaves no images for {name} to learn from")
    if name == TUNED and trials:
        raise UserError(
            "RandAugment's magnitude is chosen by validation error, and --data.val_fraction 0 sets no images aside; "
            "name one by --augment.magnitude, with --search.trials 0"
        )


def _saved(folder: Path) -> dict[str, Any] | None:
    try:
        return dict(yaml.safe_load((folder / FILE).read_text(encoding="utf-8")))
    except (FileNotFoundError, NotADirectoryError):
        return None


def _shared(base: TrainConfig) -> Plain:
    """The settings that all cells have in common; method, seed and place are each one's own."""
    augment = dataclasses.replace(base.augment, method="learned")
    return to_dict(dataclasses.replace(base, augment=augment, seed=0, out=None, resume=False))


def _begin(plan: Plan) -> str | None:
    """Write down what is compared; returns the fingerprint of the images, None where they cannot be read."""
    saved = _saved(plan.folder) or {"settings": _shared(plan.base), "jobs": 0}
    before = dict(saved.get("data") or {})
    now = {_ALL: _fingerprint(plan.base.data)}
    # A variant may have images of its own.
    own = {name: config.data for name, config in plan.methods.items() if config.data != plan.base.data}
    now |= {name: _fingerprint(data) for name, data in own.items()}
    for name, found in now.items():
        if found is not None and before.get(name, found) != found:
            whose = "" if name == _ALL else f" of {name}"
            raise UserError(
                f"the images{whose} are not those that the comparison in {plan.folder} was started with; bring them "
                "back, or choose another --out"
            )
    saved["data"] = before | {name: found for name, found in now.items() if found is not None}
    # More at a time are slower each: the table says how many there were at most.
    saved["jobs"] = max(saved["jobs"], plan.chosen.jobs)
    with replacing(plan.folder / FILE) as file:
        file.write(yaml.safe_dump(saved, sort_keys=False, allow_unicode=True).encode())
    shared: str | None = saved["data"].get(_ALL)
    return shared


def _fingerprint(data: DataConfig) -> str | None:
    """Of the images, fetched here, once, where they are to be; None where the cells will say what is wrong."""
    try:
        return fingerprint(data)
    except UserError:
        if data.download:
            raise
        return None


class _Patient:
    """Writes what there is after each cell, for whoever is killed; where that fails says so once, and trains on.

    Args:
        keep: What writes.
    """

    def __init__(self, keep: Callable[[], object]) -> None:
        self._keep, self._said = keep, False

    def __call__(self) -> None:
        try:
            self._keep()
        except (OSError, UserError) as error:
            if not self._said:
                print(f"what there is could not be written, and is tried again later: {error}", file=sys.stderr)
            self._said = True


class _Run:
    """The cells of a plan, and the search that some of them wait for.

    Args:
        plan: What is asked for.
        data: The fingerprint of the images; None where they cannot be read.
        ended: Is called after each cell that ended.

    Attributes:
        several: What trains them.
        open: What is still to be done by others, in words; empty where nothing is.
    """

    def __init__(self, plan: Plan, data: str | None, ended: Callable[[], object]) -> None:
        self.plan, self.several, self.open = plan, JobPool(plan.chosen.jobs, ended), ""
        self._search: Search | None = None
        self._errors: dict[int, list[float]] = {}
        self._data, self._chosen = data, False

    def train(self) -> None:
        """Train every cell that is not finished."""
        if TUNED in self.plan.methods:
            self._tune_first()
        # Seed by seed, so that what there is of a table can be compared from the start.
        for seed in self.plan.seeds:
            for method in self.plan.methods:
                if method != TUNED:
                    self.several.add(Job(f"{method} {seed}", self.plan.cell(method, seed)))
                elif self._search is None:
                    self._add_tuned(seed, self.plan.methods[TUNED].augment.magnitude)
                elif seed == self.plan.seeds[0]:
                    self.several.ask(self._next_trial)
                    self._add_chosen()
        self.several.run()
        if self._search is not None and not self._chosen:
            self._add_chosen()  # others may have ended the last trial meanwhile
            self.several.run()
            if not self._chosen and not self.several.problems:
                self._say_what_is_open(self._search)

    def _tune_first(self) -> None:
        chosen, folder = self.plan.chosen, self.plan.folder
        if not chosen.search.trials:
            magnitude = self.plan.methods[TUNED].augment.magnitude
            write_search(folder / SEARCH, {"trials": [], "magnitude": magnitude})
            return
        storage = chosen.search.storage or f"sqlite:///{(folder / 'search.db').resolve()}"
        name = study_name(self.plan.methods[TUNED], self._search_seeds, self._data)
        private = chosen.search.storage is None
        self._search = Search(folder / SEARCH, storage, name, chosen.search.trials, private)

    @property
    def _search_seeds(self) -> list[int]:
        """Whatever the table's seeds are, so that commands with others share the search."""
        return [*range(self.plan.chosen.search.seeds)]

    def _next_trial(self) -> list[Job]:
        """The cells of a trial of this command's own that has not ended, or of one that nobody has begun."""
        assert self._search is not None
        begun = (found for found in self._search.unfinished() if found[0] not in self._errors)
        found = next(begun, None) or self._search.next()
        return [] if found is None else self._trial(*found)

    def _trial(self, number: int, magnitude: float) -> list[Job]:
        errors = self._errors[number] = []
        search, seeds = self._search, self._search_seeds
        assert search is not None

        def then(result: Result | None) -> None:
            if result is None:
                return
            assert result.validation_error is not None
            errors.append(result.validation_error)
            if len(errors) == len(seeds):
                search.tell(number, math.fsum(errors) / len(seeds))
                self._add_chosen()

        cells = [self.plan.cell(TUNED, seed, magnitude) for seed in seeds]
        return [Job(f"{TUNED} {magnitude:g} {cell.seed}", cell, then) for cell in cells]

    def _add_chosen(self) -> None:
        """Once all trials have ended, the cells with the magnitude that was chosen."""
        assert self._search is not None
        if not self._chosen and (best := self._search.magnitude()) is not None:
            self._chosen = True
            self._search.write()
            for seed in self.plan.seeds:
                self._add_tuned(seed, best)

    def _add_tuned(self, seed: int, magnitude: float) -> None:
        self.several.add(Job(f"{TUNED} {magnitude:g} {seed}", self.plan.cell(TUNED, seed, magnitude)))

    def _say_what_is_open(self, search: Search) -> None:
        waiting = search.elsewhere()
        if waiting:
            self.open = (
                f"trial {', '.join(map(str, waiting))} of the search for RandAugment's magnitude runs elsewhere; run "
                f"the same command again when it has ended, or, if it never will: {search.how_to_give_up(waiting[0])}"
            )
        else:
            self.open = "no trial of the search for RandAugment's magnitude has ended well; see --search.storage"


def _table(plan: Plan) -> Table:
    """The table of all there is, written to the folder."""
    folder = plan.folder
    wanted = dict.fromkeys(plan.methods, plan.seeds)
    table = tabulate(read_cells(folder), wanted, chosen_magnitude(folder))
    for name, content in (
        ("table.json", json.dumps(plain(table), indent=2) + "\n"),
        ("table.md", markdown(table)),
    ):
        with replacing(folder / name) as file:
            file.write(content.encode())
    return table


def _show(table: Table) -> None:
    shown = RichTable(box=None, padding=(0, 2, 0, 0))
    for heading in headings(table):
        shown.add_column(heading, no_wrap=True)
    for line in lines(table):
        shown.add_row(*line)
    console = Console(highlight=False, soft_wrap=True, width=200)  # a line too long is better than one cut off
    console.print(shown)
    console.print(note(table), markup=False)


def _exported(path: Path | None) -> dict[str, Any]:
    """The record that is there already."""
    if path is None or not path.exists():
        return {}
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except ValueError:
        found = None
    if not is_record(found):
        raise UserError(f"--export {path} is there and no record; choose another file")
    return dict(found)


def _export(plan: Plan, path: Path, arguments: Sequence[str]) -> None:
    """Write the record of the methods that are named; what a file that is there holds of others stays."""
    before = _exported(path)
    tuned = TUNED in plan.methods and (plan.folder / SEARCH).exists()  # not where only others have searched
    search = json.loads((plan.folder / SEARCH).read_text()) if tuned else {}
    about = {
        "command": without_paths(["madao", "compare", *arguments]),
        "jobs": (_saved(plan.folder) or {}).get("jobs"),
    }
    kept = {key: search[key] for key in ("magnitude", "trials") if key in search}
    cells = read_cells(plan.folder, [*plan.methods])
    with replacing(path) as file:
        file.write(record(cells, about, kept, before).encode())


def _failures(problems: dict[str, str], table: Table) -> str:
    """All that went wrong in one line, the same words once."""
    by_message: dict[str, list[str]] = {}
    for name, message in problems.items():
        by_message.setdefault(message, []).append(name)
    told = "; ".join(f"{', '.join(names)}: {message}" for message, names in by_message.items())
    return f"{table.missing} cells are missing; {told}"
