"""The run directory: all files of a run, the same whether or not it was interrupted."""

import csv
import json
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import torch
import yaml

from madao.config.aliases import old_names
from madao.config.plain_yaml import read_yaml_file
from madao.config.train_config import Plain, TrainConfig, free_settings, from_dict, to_dict
from madao.distributed.group import ProcessGroup
from madao.distributed.launch import rank_zero_first
from madao.errors import UserError
from madao.files import load_torch, replacing, save_torch
from madao.training.run.checkpoint import Checkpoints
from madao.training.run.contents import check_weights
from madao.training.run.environment import describe_environment
from madao.training.run.tables import TABLES, append_rows, append_text, rewind_json_lines, rewind_table

LOCK = "lock"


class RunDirectory:
    """The files of one run.

    - config.yaml: every setting.
    - environment.json: versions and device.
    - split.json: classes and validation indices.
    - metrics.csv: one row per epoch.
    - timing.csv: seconds and memory, in a separate file since they never repeat.
    - outer.csv: one row per outer step with the health of its hypergradient.
    - samples.npz: a few training images.
    - policy.json: the present policy.
    - trajectory.jsonl: the policy after each epoch.
    - result.json: the result.
    - skipped.csv: images that could not be read, if there are any.
    - checkpoints/: last.pt, best.pt, and previous.pt until the run has ended.
    - tensorboard/, wandb/ or mlflow/: the files of a logger.

    Args:
        path: The directory.
        writes: Whether this process writes. Of several processes only the first does.
    """

    def __init__(self, path: Path, writes: bool = True) -> None:
        self.path, self.writes = path, writes
        self.checkpoints = Checkpoints(path / "checkpoints", writes)
        self.best = path / "checkpoints" / "best.pt"
        self._lock: IO[str] | None = None

    def claim(self, config: TrainConfig) -> None:
        """Lock the directory until `release`, and write the settings of a new run.

        Raises:
            UserError: The directory holds another run, or another process has locked it.
        """
        self.check(config)
        self.path.mkdir(parents=True, exist_ok=True)
        self._lock = lock(self.path)
        if self.saved_config() is None:
            self.write("config.yaml", yaml.safe_dump(to_dict(config), sort_keys=False, allow_unicode=True))

    def release(self) -> None:
        """Unlock the directory."""
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def check(self, config: TrainConfig) -> None:
        """Raise `UserError` if the directory holds another run."""
        saved = self.saved_config()
        if saved is None:
            # A run that was killed while it began leaves .part files.
            if self.path.exists() and not (
                self.path.is_dir() and all(path.suffix == ".part" or path.name == LOCK for path in self.path.iterdir())
            ):
                raise UserError(f"{self.path} exists and is no run directory; choose another `out`")
            return
        if not config.resume:
            raise UserError(f"{self.path} already holds a run; continue it by `resume`, or choose another `out`")
        difference = first_difference(to_dict(from_dict(saved)), to_dict(config))
        if difference is not None:
            key, before, now = difference
            raise UserError(
                f"the run in {self.path} was started with {key} = {before!r}, not {now!r}; resume it without "
                f"`{key}`, or choose another `out`"
            )

    def saved_config(self) -> Plain | None:
        """Return the settings that the run was started with; None if there is no run.

        Raises:
            UserError: The file is damaged.
        """
        try:
            file = self.path / "config.yaml"
            saved = read_yaml_file(file) if file.is_file() or not file.exists() else None
        except (FileNotFoundError, NotADirectoryError):
            return None
        except UserError:
            saved = None
        if not isinstance(saved, dict):
            raise UserError(f"{self.path / 'config.yaml'} is damaged; remove the directory or choose another `out`")
        return saved

    def write(self, name: str, content: str | bytes) -> None:
        """Replace a file."""
        if not self.writes:
            return
        with replacing(self.path / name) as file:
            # Names of folders may hold lone surrogates. Only JSON has them; it reads them back.
            file.write(content.encode(errors="backslashreplace") if isinstance(content, str) else content)

    def write_json(self, name: str, content: Any) -> None:
        """Replace a JSON file."""
        self.write(name, json.dumps(content, indent=2, ensure_ascii=False) + "\n")

    def write_environment(self, device: torch.device, model: str | None = None) -> None:
        """Write versions, device, and the name of the model, which the settings may leave open."""
        self.write_json(
            "environment.json", {**describe_environment(device), **({} if model is None else {"model": model})}
        )

    def append_rows(self, name: str, rows: Sequence[Mapping[str, Any]]) -> None:
        """Add rows to a table."""
        if self.writes:
            append_rows(self.path / name, rows)

    def append_json(self, name: str, content: Any) -> None:
        """Add a line to a JSON-lines file."""
        if self.writes:
            append_text(self.path / name, json.dumps(content) + "\n")

    def keep_best(self, weights: Any) -> None:
        """Write the best weights so far."""
        if self.writes:
            save_torch(self.best, weights)

    def load_best(self) -> dict[str, Any]:
        """Return the best weights, with their classes, epoch and validation error.

        Raises:
            UserError: There are none, or the file is damaged.
        """
        return check_weights(load_torch(self.best), self.best)

    def rewind(self, epoch: int) -> None:
        """Drop the rows after `epoch`, which the run will write again."""
        if self.writes:
            for name in TABLES:
                rewind_table(self.path / name, epoch)
            rewind_json_lines(self.path / "trajectory.jsonl", epoch)

    def read_metrics(self) -> list[dict[str, str]]:
        """Return the rows of metrics.csv."""
        with (self.path / "metrics.csv").open() as file:
            return list(csv.DictReader(file))


def run_directory(config: TrainConfig, data: str, model: str) -> Path:
    """Return the path of a run: `out`, or a name from data set, model, method and seed."""
    if config.out is not None:
        return Path(config.out)
    condition = "" if config.augment.conditional_on == "none" else f"-{config.augment.conditional_on}"
    method = Path(config.augment.method).stem + condition
    shift = "" if config.data.shift == "none" else f"-{config.data.shift}"
    task = "moco-" if config.task.name == "moco" else ""
    name = f"{data}{shift}-{task}{model.replace('/', '-')}"
    old = [Path("runs") / f"{name}-{each}{condition}-{config.seed}" for each in old_names(config.augment.method)]
    path = Path("runs") / f"{name}-{method}-{config.seed}"
    return next((each for each in old if config.resume and each.exists() and not path.exists()), path)


def check_directory(config: TrainConfig, ranks: ProcessGroup) -> None:
    """Raise `UserError`, in every process, if `out` holds another run or cannot be written."""

    def check() -> None:
        out = Path("runs") if config.out is None else Path(config.out)
        if config.out is not None:
            RunDirectory(out).check(config)
        _check_writable(out)

    rank_zero_first(ranks, check)


def _check_writable(folder: Path) -> None:
    """Raise `UserError` unless a file can be written to a folder, or to the one where it will be created."""
    there = next((each for each in (folder, *folder.absolute().parents) if each.exists()), folder)
    try:
        with tempfile.TemporaryFile(dir=there):
            pass
    except OSError as error:
        reason = error.strerror or error
        raise UserError(f"cannot write to `out={folder}` ({there}: {reason}); choose another `out`") from None


def lock(folder: Path) -> IO[str] | None:
    """Lock a folder for as long as the returned file is open and this process lives; on Windows return None.

    Raises:
        UserError: Another process has locked it.
    """
    try:
        import fcntl
    except ImportError:  # not on Windows
        return None
    file = (folder / LOCK).open("w")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        file.close()
        raise UserError(f"another process is at work in {folder}; wait for it, or choose another `out`") from None
    return file


def first_difference(before: Plain, now: Plain, prefix: str = "") -> tuple[str, Any, Any] | None:
    """Return the first setting by which two runs have different results, and its two values; None if there is none."""
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
