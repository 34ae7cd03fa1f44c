"""The run directory: everything a run leaves behind, and the same files whether or not it was interrupted."""

import csv
import importlib.metadata
import io
import json
import os
import platform
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import torch
import yaml

from madao.config.train_config import Plain, TrainConfig, free_settings, from_dict, to_dict
from madao.errors import UserError
from madao.files import replacing
from madao.training.run import checkpoint
from madao.training.run.checkpoint import Checkpoints
from madao.training.run.environment import commit

METRICS = (
    "epoch",
    "step",
    "lr",
    "train_loss",
    "train_error",
    "validation_loss",
    "validation_error",
    "outer_updates",
    "outer_skipped",
)
_WAITING = ("waiting_seconds", "model_images_per_second")
TIMING = ("epoch", "step", "seconds", "images_per_second", "outer_seconds", "memory_mib", "outer_memory_mib", *_WAITING)
_SIGNALS = ("signal_selection", "signal_application", "signal_magnitude")
_NUMBERS = ("outer_loss", "v_norm", "q_norm", "residual", "grad_norm", "products")
OUTER = ("epoch", "step", *_NUMBERS, *_SIGNALS, "status", "applied")
_TABLES = {"metrics.csv": METRICS, "timing.csv": TIMING, "outer.csv": OUTER}

LOCK = "lock"


class RunDirectory:
    """The files of one run.

    - config.yaml: every setting; environment.json: versions and device; split.json: classes and validation indices.
    - metrics.csv: one row an epoch; timing.csv: seconds and memory, apart since they never repeat.
    - outer.csv: one row an outer step, the health of its hypergradient. samples.npz: a few training images.
    - policy.json: the policy as it is now; trajectory.jsonl: as it was after each epoch.
    - result.json: how it ended.
    - checkpoints/: last.pt, best.pt, and previous.pt until it ended. tensorboard/: events.

    Args:
        path: The directory.
        writes: Whether this process is the one that writes; of several only the first does.
    """

    def __init__(self, path: Path, writes: bool = True) -> None:
        self.path, self.writes = path, writes
        self.checkpoints = Checkpoints(path / "checkpoints", writes)
        self.best = path / "checkpoints" / "best.pt"
        self._lock: IO[str] | None = None

    def claim(self, config: TrainConfig) -> None:
        """Make the directory this run's own, until `release`; raise where it holds another run."""
        self.check(config)
        self.path.mkdir(parents=True, exist_ok=True)
        self._lock = lock(self.path)
        if self.saved_config() is None:
            self.write("config.yaml", yaml.safe_dump(to_dict(config), sort_keys=False, allow_unicode=True))

    def release(self) -> None:
        """Let others have the directory."""
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def check(self, config: TrainConfig) -> None:
        """Raise where the directory holds another run."""
        saved = self.saved_config()
        if saved is None:
            # What ends in .part was left by a run that was killed while it began.
            if self.path.exists() and not (
                self.path.is_dir() and all(path.suffix == ".part" or path.name == LOCK for path in self.path.iterdir())
            ):
                raise UserError(f"{self.path} exists and is no run directory; choose another --out")
            return
        if not config.resume:
            raise UserError(f"{self.path} already holds a run; go on with it by --resume, or choose another --out")
        difference = first_difference(to_dict(from_dict(saved)), to_dict(config))
        if difference is not None:
            key, before, now = difference
            raise UserError(
                f"the run in {self.path} was started with {key} = {before!r}, not {now!r}; resume it without "
                f"--{key}, or choose another --out"
            )

    def saved_config(self) -> Plain | None:
        """The settings the run was started with; None where there is no run."""
        try:
            saved = yaml.safe_load((self.path / "config.yaml").read_text(encoding="utf-8"))
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (yaml.YAMLError, UnicodeDecodeError):
            saved = None
        if not isinstance(saved, dict):
            raise UserError(f"{self.path / 'config.yaml'} is damaged; remove the directory or choose another --out")
        return saved

    def write(self, name: str, content: str | bytes) -> None:
        """Replace a file at once."""
        if not self.writes:
            return
        with replacing(self.path / name) as file:
            file.write(content.encode() if isinstance(content, str) else content)

    def write_json(self, name: str, content: Any) -> None:
        """Replace a JSON file at once."""
        self.write(name, json.dumps(content, indent=2, ensure_ascii=False) + "\n")

    def write_environment(self, device: torch.device, model: str | None = None) -> None:
        """What the run ran on, and which model it trains, which the settings may leave open."""
        content = {
            "madao": _version(),
            "commit": commit(),
            "python": platform.python_version(),
            "torch": torch.__version__,
            "system": platform.system(),
            "device": torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
            "threads": torch.get_num_threads(),
            **({} if model is None else {"model": model}),
        }
        self.write_json("environment.json", content)

    def append_rows(self, name: str, rows: Sequence[Mapping[str, Any]]) -> None:
        """Add rows to one of the tables. Floats are written so that they read back as the same number."""
        if not self.writes:
            return
        path = self.path / name
        header = not path.exists() or path.stat().st_size == 0
        _append(path, _table(_TABLES[name], rows, header))

    def append_json(self, name: str, content: Any) -> None:
        """Add a line to a JSON-lines file."""
        if self.writes:
            _append(self.path / name, json.dumps(content) + "\n")

    def keep_best(self, weights: Any) -> None:
        """Keep these as the best so far."""
        if self.writes:
            checkpoint.write(self.best, weights)

    def rewind(self, epoch: int) -> None:
        """Forget what was written after `epoch`: it comes again."""
        if not self.writes:
            return
        for name in _TABLES:
            self._keep(name, lambda line: line.startswith("epoch") or int(line.split(",")[0]) <= epoch)
            self._complete(name)
        self._keep("trajectory.jsonl", lambda line: json.loads(line)["epoch"] <= epoch)

    def read_metrics(self) -> list[dict[str, str]]:
        """The rows of metrics.csv."""
        with (self.path / "metrics.csv").open() as file:
            return list(csv.DictReader(file))

    def _complete(self, name: str) -> None:
        """Give a table that an older version began the columns it has now."""
        path = self.path / name
        if not path.exists():
            return
        with path.open(encoding="utf-8", newline="") as file:
            reader = csv.DictReader(file)
            rows = list(reader)
        if rows and tuple(reader.fieldnames or ()) != _TABLES[name]:
            self.write(name, _table(_TABLES[name], rows, header=True))

    def _keep(self, name: str, wanted: Callable[[str], bool]) -> None:
        path = self.path / name
        if not path.exists():
            return
        kept = []
        for line in path.read_text(encoding="utf-8").splitlines(keepends=True):
            try:
                if not line.endswith("\n") or not wanted(line):
                    break
            except (ValueError, KeyError):  # a line cut short by a crash, and all after it
                break
            kept.append(line)
        self.write(name, "".join(kept))


def lock(folder: Path) -> IO[str] | None:
    """Keep other processes out of a folder, for as long as the result is open and this process lives."""
    try:
        import fcntl
    except ImportError:  # not on Windows
        return None
    file = (folder / LOCK).open("w")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        file.close()
        raise UserError(f"another process is at work in {folder}; wait for it, or choose another --out") from None
    return file


def _version() -> str | None:
    """Madao's own; None where it runs from its sources and was never installed."""
    try:
        return importlib.metadata.version("madao")
    except importlib.metadata.PackageNotFoundError:
        return None


def _append(path: Path, text: str) -> None:
    with path.open("a", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def _table(columns: Iterable[str], rows: Iterable[Mapping[str, Any]], header: bool) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    if header:
        writer.writerow(columns)
    writer.writerows([_cell(row.get(column)) for column in columns] for row in rows)
    return text.getvalue()


def _cell(value: Any) -> str:
    return "" if value is None else repr(value) if isinstance(value, float) else str(value)


def first_difference(before: Plain, now: Plain, prefix: str = "") -> tuple[str, Any, Any] | None:
    """The first setting in which two runs are not the same run: its name and both values."""
    for key in {**before, **now}:
        name = prefix + key
        a, b = before.get(key), now.get(key)
        if isinstance(a, dict) and isinstance(b, dict):
            found = first_difference(a, b, name + ".")
            if found is not None:
                return found
        elif a != b and name not in free_settings(before.get("on_error", "stop")):
            return name, a, b
    return None
