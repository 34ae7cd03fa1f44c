"""The tables of a run: CSV files to which rows are added, and which can be cut back to an epoch."""

import csv
import io
import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from madao.files import naming, replacing

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
TABLES = {"metrics.csv": METRICS, "timing.csv": TIMING, "outer.csv": OUTER}
"""The columns of each table."""


def append_rows(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Add rows to a table. Floats are written so that they read back as the same number."""
    header = not path.exists() or path.stat().st_size == 0
    append_text(path, _csv(TABLES[path.name], rows, header))


def append_text(path: Path, text: str) -> None:
    """Add text to a file and sync it to the disk."""
    with naming(path), path.open("a", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def rewind_table(path: Path, epoch: int) -> None:
    """Drop the rows of a table after `epoch`; give a table of an older version the columns of this one."""
    _keep_lines(path, lambda line: line.startswith("epoch") or int(line.split(",")[0]) <= epoch)
    if not path.exists():
        return
    with path.open(encoding="utf-8", newline="") as file:
        reader = csv.DictReader(file)
        rows = list(reader)
    if rows and tuple(reader.fieldnames or ()) != TABLES[path.name]:
        _replace_text(path, _csv(TABLES[path.name], rows, header=True))


def rewind_json_lines(path: Path, epoch: int) -> None:
    """Drop the lines of a JSON-lines file after `epoch`."""
    _keep_lines(path, lambda line: json.loads(line)["epoch"] <= epoch)


def _keep_lines(path: Path, wanted: Callable[[str], bool]) -> None:
    """Drop the first line that is unwanted, incomplete or damaged, and all lines after it."""
    if not path.exists():
        return
    kept = []
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines(keepends=True):
        try:
            if not line.endswith("\n") or "\ufffd" in line or not wanted(line):
                break
        except (ValueError, KeyError, TypeError, RecursionError):
            break
        kept.append(line)
    _replace_text(path, "".join(kept))


def _replace_text(path: Path, text: str) -> None:
    with replacing(path) as file:
        file.write(text.encode())


def _csv(columns: Sequence[str], rows: Sequence[Mapping[str, Any]], header: bool) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    if header:
        writer.writerow(columns)
    writer.writerows([_cell(row.get(column)) for column in columns] for row in rows)
    return text.getvalue()


def _cell(value: Any) -> str:
    return "" if value is None else repr(value) if isinstance(value, float) else str(value)
