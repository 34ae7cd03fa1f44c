"""Reading of single files of a run directory, which may be of another version, damaged, or made by a stranger.

Each reader checks all that it returns, so that the rest of the report can rely on it. It returns nothing for what it
cannot read and adds a line to `unread`. Files that do not exist are nothing to tell.
"""

import csv
import io
import json
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from madao.config.typed import checked
from madao.errors import PolicyFileError
from madao.policy import PolicySpec
from madao.text import printable

Table = dict[str, list[float | None]]
"""The columns of a CSV file; None where a cell holds no finite number."""

_LARGEST_FILE = 64 * 2**20
_LARGEST_NUMBER = 1e100
"""Charts overflow beyond."""
_MOST_STAGES, _MOST_OPERATIONS, _MOST_SAMPLES = 16, 200, 64
_LARGEST_SAMPLES = 128 * 2**20


def read_text(path: Path, unread: list[str]) -> str | None:
    """Return the text of a file."""
    try:
        if path.exists() and not path.is_file():
            raise OSError("it is no regular file")
        if path.stat().st_size > _LARGEST_FILE:
            raise OSError(f"it is larger than {_LARGEST_FILE // 2**20} MiB")
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        unread.append(f"{path.name} ({printable(getattr(error, 'strerror', None) or error, 100)})")
        return None


def read_columns(path: Path, unread: list[str]) -> dict[str, list[str]]:
    """Read the columns of a CSV file, without incomplete lines."""
    text = read_text(path, unread)
    try:
        rows = list(csv.reader(line for line in io.StringIO(text, newline="\n") if line.endswith("\n"))) if text else []
    except csv.Error as error:
        unread.append(f"{path.name} ({error})")
        return {}
    whole = [row for row in rows[1:] if len(row) == len(rows[0])]
    return {name: [row[column] for row in whole] for column, name in enumerate(rows[0])} if whole else {}


def numbers_of(columns: Mapping[str, Sequence[str]]) -> Table:
    """Return the numbers in the columns of a CSV file."""
    return {name: [_number(text) for text in column] for name, column in columns.items()}


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if abs(value) <= _LARGEST_NUMBER else None  # NaN is not


def read_fields(path: Path, known: Mapping[str, Any], unread: list[str]) -> dict[str, Any]:
    """Read a JSON object, without fields of another type than `known` says."""
    text = read_text(path, unread)
    if text is None:
        return {}
    try:
        content = json.loads(text, parse_constant=_number, parse_int=_integer, parse_float=_number)
    except (ValueError, RecursionError):
        content = None
    if not isinstance(content, dict):
        unread.append(f"{path.name} (no whole JSON object)")
        return {}
    fields, problems = checked(content, known)
    unread += [f"{path.name} ({problem.replace('`', '')})" for problem in problems]
    return fields


def _integer(text: str) -> float | int | None:
    return int(text) if len(text) < 20 else _number(text)


def read_trajectory(path: Path, unread: list[str]) -> tuple[tuple[str, ...], list[float], np.ndarray] | None:
    """Read names of operations, epochs, and the policy at each, `[times, 3, stages, operations]`.

    The last index but three is selection, application and magnitude. Lines after the first incomplete one are left out.
    """
    text = read_text(path, unread)
    operations: Any = []
    epochs: list[float] = []
    values: list[np.ndarray] = []
    for line in (text or "").splitlines():
        try:
            content = json.loads(line)
            operations = content.get("operations", operations)
            if "selection" in content:
                entry = np.asarray([content[name] for name in ("selection", "application", "magnitude")], float)
                epoch = float(content["epoch"])
                if not np.isfinite(epoch) or (values and entry.shape != values[0].shape):
                    break
                epochs.append(epoch)
                values.append(entry)
        except (KeyError, TypeError, ValueError, AttributeError, RecursionError, OverflowError):
            break
    if not values:
        return None
    stacked = np.stack(values)
    named = isinstance(operations, list) and all(isinstance(name, str) for name in operations)
    fits = named and stacked.ndim == 4 and stacked.shape[-1] == len(operations) == len({*operations})
    if not fits or stacked.shape[2] > _MOST_STAGES or len(operations) > _MOST_OPERATIONS:
        unread.append(f"{path.name} (expected up to {_MOST_STAGES} stages of the named operations)")
        return None
    known = ((stacked >= 0) & (stacked <= 1)).all((1, 2, 3)) & (np.abs(epochs) <= _LARGEST_NUMBER)
    if not stacked.size or not known.any():
        return None
    return tuple(operations), [epoch for epoch, good in zip(epochs, known, strict=True) if good], stacked[known]


def read_policy(path: Path, unread: list[str]) -> PolicySpec | None:
    """Read a policy file."""
    text = read_text(path, unread)
    if text is None:
        return None
    try:
        policy = PolicySpec.loads(text)
    except PolicyFileError as error:
        unread.append(f"{path}: {error}")
        return None
    if len(policy.stages) > _MOST_STAGES:
        unread.append(f"{path.name} (it has {len(policy.stages)} stages, and up to {_MOST_STAGES} are shown)")
        return None
    return policy


def read_samples(path: Path, unread: list[str]) -> tuple[np.ndarray | None, np.ndarray | None]:
    """Read images, uint8 `[n, C, H, W]`, and the label of each."""
    try:
        if not path.is_file():
            return None, None
        with zipfile.ZipFile(path) as archive:
            if sum(member.file_size for member in archive.infolist()) > _LARGEST_SAMPLES:
                raise ValueError(f"it is larger than {_LARGEST_SAMPLES // 2**20} MiB")
        with np.load(path, allow_pickle=False) as archive:
            images: np.ndarray = archive["images"]
            labels: np.ndarray = archive["labels"] if "labels" in archive else np.zeros(0)
        if images.ndim != 4 or images.dtype != np.uint8 or images.shape[1] not in (1, 3) or not images.size:
            raise ValueError("expected images of 8 bits with 1 or 3 channels")
    except Exception as error:  # zip, zlib and numpy have an error each for a damaged file
        unread.append(f"{path.name} ({printable(error, 100)})")
        return None, None
    labelled = labels.shape == images.shape[:1] and np.issubdtype(labels.dtype, np.integer)
    return images[:_MOST_SAMPLES], labels[:_MOST_SAMPLES] if labelled else None
