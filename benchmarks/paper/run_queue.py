"""Train as many cells of the queue as fit into a given time, several at a time on one GPU.

    python benchmarks/paper/run_queue.py --minutes 24 --jobs 8 --out runs/paper --data data
    python benchmarks/paper/run_queue.py --publish runs/paper          # adds what is finished to benchmarks/results/

The order and the costs are in `queue.yaml`. The runner starts NVIDIA's multi-process service (MPS) where there is one.
A cell starts only if it can end in time. Cells that compile the same code wait for the first of them. The same command
skips finished cells and resumes interrupted ones. `OUT` holds:

- `RECIPE/METHOD/SEED/`: the run directories;
- `progress.json`: what is finished, running and waiting, written at every change;
- `cells.tar.gz`: the small files of all finished cells, without checkpoints; unpack it anywhere and `--publish` it;
- `logs/`: what each cell printed; `cache/`: compiled code, shared by all cells.
"""

import argparse
import dataclasses
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

import yaml
from cell_queue import Job, Queue, QueuedCell, SlowDown, epoch_seconds, job, next_cell, read_queue
from entries import ROOT, Entry

from madao.cli.compare_arguments import read_plan
from madao.config.train_config import TrainConfig, to_dict
from madao.experiments.published import record
from madao.experiments.table import read_runs, run_path

HERE = Path(__file__).parent
SMALL_FILES = (
    *("config.yaml", "environment.json", "split.json", "result.json", "policy.json", "trajectory.jsonl"),
    *("metrics.csv", "timing.csv", "outer.csv"),
)
"""What the record of a cell is made of."""
ARCHIVE = "cells.tar.gz"
LARGEST_ARCHIVE = 16 * 2**20
GRACE = 20.0
"""Seconds before the end at which running cells are told to write their checkpoints; of a short call a quarter."""
STALLED = 300.0
"""Seconds without an epoch after which a cell is started again: compilers of torch 2.11 hang now and then."""
WINDOW = 40.0
"""Seconds over which the slow-down is measured, once the number of jobs has been the same for as long."""
ATTEMPTS = 2
"""How often a cell is started in one call: a failure under MPS may be that of another cell."""
HOPELESS = 3
"""So many failures, with no cell finished, end the call."""


@dataclasses.dataclass
class Training:
    """A cell with its settings, and its process while it runs.

    Attributes:
        cell: The line of the queue.
        config: What `madao train` is given.
        code: What cells compile that share compiled code.
        needs: A file without which it cannot start: the last one of its data set to be unpacked.
        process: Its process.
        started: When this process began.
        marks: The times at which this process was seen to end an epoch, and how many were over.
        attempts: How many processes were started.
        problem: Why the last one failed, if it did.
    """

    cell: QueuedCell
    config: TrainConfig
    code: str
    needs: Path | None = None
    process: "subprocess.Popen[bytes] | None" = None
    started: float = 0.0
    marks: list[tuple[float, int]] = dataclasses.field(default_factory=list)
    attempts: int = 0
    problem: str = ""

    @property
    def path(self) -> Path:
        """The run directory."""
        return Path(str(self.config.out))

    @property
    def finished(self) -> bool:
        """Whether its result is there."""
        return (self.path / "result.json").is_file()

    @property
    def has_data(self) -> bool:
        """Whether its data set is there."""
        return self.needs is None or self.needs.is_file()

    @property
    def epochs_done(self) -> int:
        """How many epochs are over, this process's or an earlier one's."""
        try:
            rows = (self.path / "metrics.csv").read_text().splitlines()
            return int(rows[-1].split(",")[0])
        except (OSError, IndexError, ValueError):
            return 0

    def left(self, now: float) -> Job:
        """What is left of it."""
        elapsed = 0.0 if self.process is None else now - self.started
        began = self.process is not None and len(self.marks) > 1
        return job(self.cell, self.config.epochs, self.epochs_done, None if began else elapsed)

    def ratio(self) -> float | None:
        """How many times slower it is than alone, as measured in the last seconds."""
        measured = epoch_seconds(self.marks, WINDOW)
        return None if measured is None else measured * self.config.epochs / self.cell.seconds


class Runner:
    """Trains cells until none fits into the time that is left.

    Args:
        queue: The queue.
        trainings: Its cells, in order.
        out: Where everything goes.
        jobs: How many cells run at a time.
        memory: MiB of GPU memory that cells may take together.
        minutes: The time that it may take.
        patient: Whether to wait for data sets that are not there yet.
        mps: Whether to start NVIDIA's multi-process service.
    """

    def __init__(
        self,
        queue: Queue,
        trainings: Sequence[Training],
        out: Path,
        jobs: int,
        memory: float,
        minutes: float,
        patient: bool = False,
        mps: bool = True,
    ) -> None:
        self.trainings, self.out, self.jobs, self.memory = trainings, out, jobs, memory
        self.began = time.monotonic()
        self.grace = min(GRACE, 15 * minutes)
        self.deadline = self.began + 60 * minutes - self.grace
        self.mps = Mps()
        self.slow_down = SlowDown(queue.sharing["without_mps"])
        self._sharing = queue.sharing
        self._changed = self.began
        self._patient, self._start_mps, self._stop = patient, mps, False

    def run(self) -> int:
        """Train; returns the exit code: 1 if a cell failed for good."""
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._ask_to_stop)
        (self.out / "logs").mkdir(parents=True, exist_ok=True)
        if self._start_mps and self.mps.start():
            self.slow_down.per_job = self._sharing["with_mps"]
        try:
            while not self._stop and self._remaining > 0 and not self._hopeless:
                self._look()
                while self._start_next():
                    pass
                if not self._running and not (self._patient and self._without_data):
                    break
                time.sleep(0.5)
        finally:
            self._end()
        return int(any(training.problem for training in self.trainings))

    @property
    def _remaining(self) -> float:
        return self.deadline - time.monotonic()

    @property
    def _running(self) -> list[Training]:
        return [training for training in self.trainings if training.process is not None]

    @property
    def _waiting(self) -> list[Training]:
        return [
            training
            for training in self.trainings
            if training.process is None and not training.finished and training.attempts < ATTEMPTS
        ]

    @property
    def _without_data(self) -> list[Training]:
        return [training for training in self._waiting if not training.has_data]

    @property
    def _hopeless(self) -> bool:
        failures = sum(training.attempts for training in self.trainings if training.problem)
        return failures >= HOPELESS and not any(training.finished for training in self.trainings)

    def _ask_to_stop(self, number: int, frame: FrameType | None) -> None:
        self._stop = True

    def _look(self) -> None:
        """Note which epochs and which cells have ended, and measure the slow-down."""
        now = time.monotonic()
        for training in self._running:
            assert training.process is not None
            done = training.epochs_done
            if not training.marks or done > training.marks[-1][1]:
                training.marks.append((now, done))
            if training.process.poll() is not None:
                self._note_end(training, training.process.returncode)
            elif now - max(training.started, training.marks[-1][0]) > STALLED:
                training.process.kill()
                training.process.wait()
                self._note_end(training, -signal.SIGKILL)
        ratios = [ratio for training in self._running if (ratio := training.ratio()) is not None]
        if now - self._changed > WINDOW and len(ratios) == len(self._running):
            self.slow_down.measure(ratios)
        self._write_progress()

    def _note_end(self, training: Training, code: int) -> None:
        training.process, self._changed = None, time.monotonic()
        log = (self.out / "logs" / f"{training.cell.name}.log").read_text(errors="replace").strip().splitlines()
        training.problem = "" if training.finished and code == 0 else f"code {code}: {log[-1] if log else 'no output'}"
        if training.problem:
            print(f"{training.cell.name}: failed, {training.problem}", flush=True)
        else:
            error = json.loads((training.path / "result.json").read_text()).get("test_error")
            told = "no test error" if error is None else f"test error {100 * error:.2f} %"
            print(f"{self._clock()} {training.cell.name}: finished, {told}", flush=True)
            collect(self.trainings, self.out)

    def _start_next(self) -> bool:
        """Start the first cell that may start; returns whether there was one."""
        running, now = self._running, time.monotonic()
        if len(running) >= self.jobs:
            return False
        compiled = {training.code for training in self.trainings if len(training.marks) > 1 or training.finished}
        compiling = {training.code for training in running} - compiled
        ready = [training for training in self._waiting if training.has_data]
        waiting = [(training.cell, training.left(now), training.code) for training in ready]
        free = self.memory - sum(training.cell.memory for training in running)
        left = [training.left(now) for training in running]
        chosen = next_cell(waiting, left, compiling, self._remaining, free, self.slow_down)
        if chosen is None:
            return False
        self._start(next(training for training in self.trainings if training.cell == chosen))
        return True

    def _start(self, training: Training) -> None:
        settings = self.out / "settings" / f"{training.cell.name}.yaml"
        settings.parent.mkdir(exist_ok=True)
        settings.write_text(yaml.safe_dump(to_dict(training.config), sort_keys=False))
        threads = str(max(1, (os.cpu_count() or 1) // self.jobs))
        environment = {
            "TORCHINDUCTOR_CACHE_DIR": str((self.out / "cache" / "inductor").resolve()),
            "TRITON_CACHE_DIR": str((self.out / "cache" / "triton").resolve()),
            "TORCHINDUCTOR_COMPILE_THREADS": str(max(2, (os.cpu_count() or 1) // 4)),
            "OMP_NUM_THREADS": threads,
            "PYTHONUNBUFFERED": "1",
            **os.environ,
            **self.mps.environment,
        }
        training.attempts += 1
        training.started = self._changed = time.monotonic()
        training.marks = [(training.started, training.epochs_done)]
        resumed = f", from epoch {training.epochs_done}" if training.epochs_done else ""
        print(f"{self._clock()} {training.cell.name}: started{resumed}", flush=True)
        with (self.out / "logs" / f"{training.cell.name}.log").open("ab") as log:
            training.process = subprocess.Popen(
                [sys.executable, str(HERE / "train_cell.py"), str(settings)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=ROOT,
                env=environment,
                start_new_session=True,  # Ctrl-C reaches the runner alone, which tells the cells
            )
        self._write_progress()

    def _end(self) -> None:
        """Let cells that still run write their checkpoints; collect what is finished."""
        running = self._running
        for training in running:
            assert training.process is not None
            training.process.terminate()
        end = time.monotonic() + GRACE
        for training in running:
            assert training.process is not None
            try:
                training.process.wait(max(0.1, end - time.monotonic()))
            except subprocess.TimeoutExpired:
                training.process.kill()
                training.process.wait()
            code, training.process = training.process.returncode, None
            if training.finished:
                self._note_end(training, code)
            else:
                print(f"{self._clock()} {training.cell.name}: stopped at epoch {training.epochs_done}", flush=True)
        self.mps.stop()
        size = collect(self.trainings, self.out)
        self._write_progress()
        finished = sum(training.finished for training in self.trainings)
        print(f"{finished} of {len(self.trainings)} cells are finished; {self.out / ARCHIVE}: {size / 2**20:.1f} MiB")
        if lacking := self._without_data:
            print(f"{len(lacking)} cells were left out, as their data set is not there: {lacking[0].needs}")
        if size > LARGEST_ARCHIVE:
            print(f"{ARCHIVE} is larger than {LARGEST_ARCHIVE / 2**20:.0f} MiB", file=sys.stderr)

    def _clock(self) -> str:
        seconds = int(time.monotonic() - self.began)
        return f"{seconds // 60:3d}:{seconds % 60:02d}"

    def _write_progress(self) -> None:
        state = {
            "seconds": round(time.monotonic() - self.began),
            "remaining": round(self._remaining),
            "mps": self.mps.runs,
            "slow_down_per_job": round(self.slow_down.per_job, 3),
            "running": {training.cell.name: self._told(training) for training in self._running},
            "finished": {
                training.cell.name: json.loads((training.path / "result.json").read_text()).get("test_error")
                for training in self.trainings
                if training.finished
            },
            "waiting": [training.cell.name for training in self._waiting],
            "failed": {training.cell.name: training.problem for training in self.trainings if training.problem},
        }
        write(self.out / "progress.json", json.dumps(state, indent=2) + "\n")

    def _told(self, training: Training) -> dict[str, Any]:
        ratio = training.ratio()
        return {
            "epoch": training.epochs_done,
            "of": training.config.epochs,
            "seconds": round(time.monotonic() - training.started),
            "times_slower": None if ratio is None else round(ratio, 2),
        }


class Mps:
    """NVIDIA's multi-process service, with its files in a temporary folder.

    Attributes:
        runs: Whether it runs.
        environment: What its clients need.
    """

    def __init__(self) -> None:
        self.runs, self.environment = False, dict[str, str]()
        self._folder: str | None = None

    def start(self) -> bool:
        """Start the service and try a client; returns whether it works. Says in one line why not."""
        if shutil.which("nvidia-cuda-mps-control") is None:
            print("MPS: there is no nvidia-cuda-mps-control; cells share the GPU without it", flush=True)
            return False
        self._folder = tempfile.mkdtemp(prefix="mps-")
        names = ("CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY")
        self.environment = {name: os.path.join(self._folder, name[9:12].lower()) for name in names}
        for folder in self.environment.values():
            os.mkdir(folder)
        try:
            self._control(["-d"])
            client = [sys.executable, "-c", "import torch; torch.zeros(1, device='cuda').item()"]
            subprocess.run(client, env={**os.environ, **self.environment}, check=True, capture_output=True, timeout=90)
        except (OSError, subprocess.SubprocessError) as error:
            output = getattr(error, "stderr", None) or b""
            why = (output.decode(errors="replace").strip().splitlines() or [str(error)])[-1]
            self.runs = True
            self.stop()
            print(f"MPS: it does not work ({why}); cells share the GPU without it", flush=True)
            return False
        self.runs = True
        print("MPS: started", flush=True)
        return True

    def stop(self) -> None:
        """End the service."""
        if self.runs:
            try:
                self._control([], b"quit\n")
            except (OSError, subprocess.SubprocessError) as error:
                print(f"MPS: could not be stopped ({error})", file=sys.stderr)
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
        self.runs, self._folder, self.environment = False, None, {}

    def _control(self, arguments: list[str], text: bytes = b"") -> None:
        command = ["nvidia-cuda-mps-control", *arguments]
        environment = {**os.environ, **self.environment}
        subprocess.run(command, env=environment, input=text, check=True, stdout=subprocess.DEVNULL, timeout=30)


def prepare(queue: Queue, out: Path, data: str) -> list[Training]:
    """Find the settings of each cell, as `madao compare` would.

    Args:
        queue: The queue.
        out: The folder of the run directories.
        data: The folder of the data sets.
    """
    groups: dict[Entry, dict[QueuedCell, None]] = {}
    for cell in queue.cells:
        groups.setdefault(Entry(cell.recipe, (), cell.epochs), {})[cell] = None
    flags = [
        f"--{key}={value if isinstance(value, str) else json.dumps(value)}" for key, value in queue.settings.items()
    ]
    found: dict[QueuedCell, Training] = {}
    for entry, cells in groups.items():
        methods = list(dict.fromkeys(cell.method for cell in cells))
        plan = read_plan([*entry.arguments(methods, [0], data)[1:], *flags, "--search.trials=0"])
        for cell in cells:
            config = plan.run_config(cell.method, cell.seed)
            config = dataclasses.replace(config, out=str(run_path(out / entry.name, cell.method, cell.seed)))
            learned = cell.method if config.augment.method == "learned" else "fixed"
            code = f"{config.data.name} {config.model.name} {learned}"  # weights alone, or outer steps too
            needs = queue.needs.get(cell.recipe)
            found[cell] = Training(cell, config, code, None if needs is None else Path(data) / needs)
    return [found[cell] for cell in queue.cells]


def collect(trainings: Sequence[Training], out: Path) -> int:
    """Write the small files of all finished cells into one archive.

    Args:
        trainings: The cells.
        out: The folder of the run directories and of the archive.

    Returns:
        The archive's size in bytes.
    """
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w:gz", compresslevel=9) as archive:
        for training in trainings:
            if training.finished:
                for path in (training.path / name for name in SMALL_FILES):
                    if path.is_file():
                        archive.add(path, str(path.relative_to(out)))
    write(out / ARCHIVE, content.getvalue())
    return len(content.getvalue())


def publish(folder: Path, results: Path, about: Mapping[str, Any]) -> list[str]:
    """Add the finished cells of a folder to the records.

    Args:
        folder: `OUT`, or what `cells.tar.gz` was unpacked to.
        results: The folder of the records.
        about: What made the cells: `command` and `jobs`.

    Returns:
        A line per record.
    """
    lines = []
    for inner in sorted(path for path in folder.iterdir() if path.is_dir()):
        cells = read_runs(inner)
        if not cells:
            continue
        path = results / f"paper-{inner.name}.json"
        before = json.loads(path.read_text()) if path.exists() else None
        write(path, record(cells, about, {}, before))
        lines.append(f"{path}: {', '.join(f'{name} {seed}' for name, seeds in cells.items() for seed in seeds)}")
    return lines


def write(path: Path, content: str | bytes) -> None:
    """Replace a file at once, so that readers never see half of it."""
    part = path.with_name(path.name + ".part")
    part.write_bytes(content.encode() if isinstance(content, str) else content)
    part.replace(path)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=24, help="the time limit of the whole call")
    parser.add_argument("--jobs", type=int, default=8, help="cells at a time")
    parser.add_argument("--out", type=Path, default=Path("runs/paper"), help="the folder of the run directories")
    parser.add_argument("--data", default="data", help="the folder of the data sets")
    parser.add_argument("--queue", type=Path, default=HERE / "queue.yaml", help="the file of the queue")
    parser.add_argument("--memory", type=float, default=120_000, help="MiB of GPU memory that cells may take")
    parser.add_argument("--wait-for-data", action="store_true", help="wait for data sets that are not there yet")
    parser.add_argument("--no-mps", action="store_true", help="do not start NVIDIA's multi-process service")
    parser.add_argument("--publish", type=Path, help="train nothing; add this folder's finished cells to the records")
    parser.add_argument("--results", type=Path, default=ROOT / "benchmarks/results", help="the folder of the records")
    parser.add_argument("--list", action="store_true", help="train nothing; list the cells and whether they are done")
    arguments = parser.parse_args()
    if arguments.publish is not None:
        command = f"python benchmarks/paper/run_queue.py --minutes {arguments.minutes:g} --jobs {arguments.jobs}"
        about = {"command": command, "jobs": arguments.jobs}
        print("\n".join(publish(arguments.publish, arguments.results, about)))
        return 0
    queue = read_queue(arguments.queue)
    out = arguments.out.resolve()
    trainings = prepare(queue, out, str(Path(arguments.data).resolve()))
    if arguments.list:
        for training in trainings:
            state = (
                "finished" if training.finished else f"epoch {training.epochs_done}" if training.epochs_done else "–"
            )
            print(f"{training.cell.name}: {state}")
        return 0
    limits = (arguments.jobs, arguments.memory, arguments.minutes)
    return Runner(queue, trainings, out, *limits, patient=arguments.wait_for_data, mps=not arguments.no_mps).run()


if __name__ == "__main__":
    sys.exit(main())
