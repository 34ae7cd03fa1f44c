"""A comparison: train each method with each seed, and update their table after every run."""

import contextlib
import functools
import json
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from madao.errors import UserError
from madao.experiments.compare_config import Plan
from madao.experiments.comparison_folder import begin_folder, check_folder, read_folder
from madao.experiments.jobs import Job, JobPool, train
from madao.experiments.magnitude_search import MagnitudeSearch, read_search, write_search
from madao.experiments.published import is_record, record, without_paths
from madao.experiments.shared_search import SharedSearch, optuna_library, study_name
from madao.experiments.table import SEARCH, TUNED, Table, chosen_magnitude, markdown, read_runs, tabulate, to_dict
from madao.files import replacing
from madao.training.run.directory import lock


class Comparison:
    """The runs of a plan: one training for each method and seed."""

    def __init__(
        self,
        plan: Plan,
        command: Sequence[str] = (),  # for the record
        say: Callable[[str], object] = print,  # gets lines about runs that failed
        describe: Callable[[str], object] = print,  # gets lines on images, model and policy; it must be picklable
    ) -> None:
        self.plan, self.command, self.say = plan, command, say
        self.unfinished = ""  # why the search for RandAugment's magnitude has no result yet
        self._pool = JobPool(plan.chosen.jobs, self._ended, functools.partial(train, say=describe))
        self.problems = self._pool.problems  # the error of each failed run, by its name
        self._trials: dict[float, list[Job]] = {}
        self._said_unwritable = False
        if TUNED in plan.methods and plan.chosen.search.trials and plan.chosen.search.storage is not None:
            optuna_library()
        check_folder(plan)
        self._read_record()

    @property
    def export(self) -> Path | None:
        """The file of the record, if one is wanted."""
        return None if self.plan.chosen.export is None else Path(self.plan.chosen.export)

    @contextmanager
    def begin(self) -> Iterator[Table]:
        """Lock the folder and write the table of the finished runs; if this is impossible, fail before any training."""
        self.plan.folder.mkdir(parents=True, exist_ok=True)
        with lock(self.plan.folder) or contextlib.nullcontext():
            data = begin_folder(self.plan)
            self._search = self._begin_search(data)
            yield self.write()

    def train(self) -> None:
        """Train every run that is not finished.

        Raises:
            Interrupted: On SIGINT or SIGTERM, once every run has written its checkpoint.
        """
        self._pool.run(self._jobs())
        if self._search is not None and self._search.best() is None and not self.problems:
            self.unfinished = self._search.unfinished()

    def write(self) -> Table:
        """Write the table and the record of all finished runs."""
        folder = self.plan.folder
        wanted = dict.fromkeys(self.plan.methods, self.plan.seeds)
        table = tabulate(read_runs(folder), wanted, chosen_magnitude(folder))
        for name, content in (
            ("table.json", json.dumps(to_dict(table), indent=2) + "\n"),
            ("table.md", markdown(table)),
        ):
            with replacing(folder / name) as file:
                file.write(content.encode())
        if self.export is not None:
            self._write_record(self.export)
        return table

    def _begin_search(self, data: str | None) -> MagnitudeSearch | None:
        search, path = self.plan.chosen.search, self.plan.folder / SEARCH
        if TUNED not in self.plan.methods:
            return None
        if not search.trials:
            write_search(path, {"trials": [], "magnitude": self.plan.methods[TUNED].augment.magnitude})
            return None
        if search.storage is None:
            return MagnitudeSearch(path, search.trials, search.seeds)
        name = study_name(self.plan.methods[TUNED], search.seeds, data)
        return SharedSearch(path, search.trials, search.seeds, search.storage, name)

    def _jobs(self) -> Iterator[Job | None]:
        """Yield the runs seed by seed, so that methods can be compared early; trials come with the first seed."""
        search = self._search
        for seed in self.plan.seeds:
            for method in self.plan.methods:
                if method != TUNED:
                    yield Job(f"{method} {seed}", self.plan.run_config(method, seed))
                elif search is None:
                    yield self._tuned(self.plan.methods[TUNED].augment.magnitude, seed)
                elif seed == self.plan.seeds[0]:
                    yield from self._next_trials(search)
        if search is None:
            return
        while (best := search.best()) is None:
            yield None
        search.write()
        for seed in self.plan.seeds:
            yield self._tuned(best, seed)

    def _next_trials(self, search: MagnitudeSearch) -> Iterator[Job]:
        while (magnitude := search.next()) is not None:
            # Seeds from 0, whichever the table has, so that commands with others share the search.
            self._trials[magnitude] = [self._tuned(magnitude, seed) for seed in range(search.seeds)]
            self._tell(magnitude)
            yield from self._trials.get(magnitude, ())

    def _tuned(self, magnitude: float, seed: int) -> Job:
        return Job(f"{TUNED} {magnitude:g} {seed}", self.plan.run_config(TUNED, seed, magnitude))

    def _tell(self, magnitude: float) -> None:
        """Tell the search the mean error of a trial, once all its trainings have ended."""
        results = [job.result for job in self._trials[magnitude]]
        errors = [result.validation_error for result in results if result is not None]
        known = [error for error in errors if error is not None]
        if self._search is not None and len(known) == len(results):
            del self._trials[magnitude]
            self._search.tell(magnitude, math.fsum(known) / len(known))

    def _ended(self, job: Job, problem: str | None) -> None:
        """Note the end of a run in the files, since the command may be killed at any time."""
        if problem is not None:
            self.say(f"{job.name}: failed: {problem}")
        for magnitude, jobs in [*self._trials.items()]:
            if job in jobs:
                self._tell(magnitude)
        try:
            self.write()
        except (OSError, UserError) as error:
            if not self._said_unwritable:
                self.say(f"the table could not be written and is tried again later: {error}")
            self._said_unwritable = True

    def _read_record(self) -> dict[str, Any]:
        if self.export is None or not self.export.exists():
            return {}
        try:
            found = json.loads(self.export.read_text(encoding="utf-8"))
        except ValueError:
            found = None
        if not is_record(found):
            raise UserError(f"`export={self.export}` exists and is no record; choose another file")
        return dict(found)

    def _write_record(self, path: Path) -> None:
        """Write the record of the plan's methods; runs of others that the file has stay."""
        before, folder = self._read_record(), self.plan.folder
        search = read_search(folder / SEARCH) if TUNED in self.plan.methods else {}
        about = {"command": without_paths(self.command), "jobs": (read_folder(folder) or {}).get("jobs")}
        kept: dict[str, Any] = {key: search[key] for key in ("magnitude", "trials") if key in search}
        text = record(read_runs(folder, [*self.plan.methods]), about, kept, before)
        with replacing(path) as file:
            file.write(text.encode())
