"""What is published of a table: every cell's seed, settings, curve and end, without anything of the machine's paths."""

import hashlib
import json
import shlex
from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import Any

from madao.config.aliases import current_record
from madao.config.train_config import free_settings
from madao.experiments.table import peak_memory, train_minutes
from madao.report.run import Run, dotted

LARGEST = 300_000
"""Bytes of a record; curves have as many points as that allows."""
_POINTS = (200, 100, 50, 25, 12, 6)
_CURVE = ("train_loss", "train_error", "validation_error")
_POLICY = ("selection", "application", "magnitude")
_MADE = ("command", "jobs")
_ENDED = ("environment", "minutes", "test_error", "validation_error")
"""What two trainings of a cell do not have in common."""
_LEFT_OUT = {"seed", *free_settings()}


def record(
    cells: Mapping[str, Mapping[int, Run]],
    about: Mapping[str, Any],
    search: Mapping[str, Any],
    before: Mapping[str, Any] | None = None,
) -> str:
    """A record as JSON of at most `LARGEST` bytes, if curves of 6 points let it.

    Args:
        cells: By method and seed.
        about: What else is to be known: command, jobs.
        search: How RandAugment's magnitude was chosen; empty where it was not searched for.
        before: A record that this one adds to: its cells stay, but for those that were trained again, and say which
            command made them.
    """
    before = current_record(before) if before else {}
    made = {key: before[key] for key in _MADE if key in before and before[key] != about.get(key)}
    old = {
        name: {**made, **cell, "settings": {**before.get("settings", {}), **cell["settings"]}}
        for name, cell in before.get("cells", {}).items()
    }
    new = {}
    for method, runs in cells.items():
        first = min([*runs, *(cell["seed"] for name, cell in old.items() if name == f"{method} {cell['seed']}")])
        for seed, run in runs.items():
            cell, known = _cell(run, whole=seed == first), old.get(f"{method} {seed}", {})
            if all(known.get(key) == cell[key] for key in _ENDED):  # of the same folder, but an earlier command's
                cell |= {key: known[key] for key in _MADE if key in known}
            new[f"{method} {seed}"] = cell
    head, text = {**about, "search": dict(search or before.get("search", {}))}, ""
    for points in _POINTS:
        text = _dumps(head, {name: _thinned(cell, points) for name, cell in {**old, **new}.items()})
        if len(text.encode()) <= LARGEST:
            break
    return text


def is_record(content: Any) -> bool:
    """Whether it is what `record` writes."""
    if not isinstance(content, dict) or not {"command", "search", "settings", "cells"} <= content.keys():
        return False
    cells = content["cells"]
    return isinstance(cells, dict) and all(
        isinstance(cell, dict) and {"seed", "settings"} <= cell.keys() for cell in cells.values()
    )


def settings(run: Run) -> dict[str, Any]:
    """A run's settings by their dotted names, without those that only say where and how it ran."""
    return {key: _no_path(value) for key, value in dotted(run.config).items() if key not in _LEFT_OUT}


def without_paths(command: Sequence[str]) -> str:
    """A command line as anybody would type it: folders and files of this machine by their last name, no URLs."""
    options = [word.partition("=") for word in command]
    return shlex.join(
        f"{word}={_no_path(value)}" if equals and word.startswith("--") else str(_no_path(word + equals + value))
        for word, equals, value in options
    )


def _cell(run: Run, whole: bool) -> dict[str, Any]:
    """All of a run; of its policy the whole way, or only where it ended."""
    measured = [i for i, error in enumerate(run.metrics.get("validation_error", ())) if error is not None]
    measured = measured or [*range(len(run.metrics.get("epoch", ())))]  # where no images were set aside
    content: dict[str, Any] = {
        "seed": run.setting("seed", 0),
        "settings": settings(run),
        "test_error": run.result.get("test_error"),
        "validation_error": run.result.get("validation_error"),
        "minutes": _rounded(train_minutes(run)),
        "memory_mib": _rounded(peak_memory(run)),
        "environment": dict(run.environment),
        "curve": {
            name: [_rounded(run.metrics[name][i]) for i in measured]
            for name in ("epoch", *_CURVE)
            if name in run.metrics
        },
    }
    played = run.path / "policy.json"
    if str(run.setting("augment.method")).endswith(".json") and played.exists():  # settings have its name only
        content["policy_sha256"] = hashlib.sha256(played.read_bytes()).hexdigest()
    way = run.trajectory
    if way is not None and way.epochs:
        kept = range(0 if whole else len(way.epochs) - 1, len(way.epochs))
        content["policy"] = {
            "operations": list(way.operations),
            "epochs": [way.epochs[i] for i in kept],
            **{name: [_digits(way.values[name][i].tolist()) for i in kept] for name in _POLICY},
        }
    return content


def _thinned(cell: Mapping[str, Any], points: int) -> dict[str, Any]:
    """With so many points at most in its curve and in the way of its policy, spread evenly."""
    thin = dict(cell)
    for part, axis in (("curve", "epoch"), ("policy", "epochs")):
        if axis in cell.get(part, {}):
            kept = _spread(len(cell[part][axis]), points)
            thin[part] = {
                name: values if name == "operations" else [values[i] for i in kept]
                for name, values in cell[part].items()
            }
    return thin


def _spread(count: int, most: int) -> list[int]:
    """So many places of `count`, the first and the last among them; all where there are no more."""
    return [*range(count)] if count <= most else [round(i * (count - 1) / (most - 1)) for i in range(most)]


def _common(all_settings: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What is the same in all of them."""
    if not all_settings:
        return {}
    first, *others = all_settings
    return {key: value for key, value in first.items() if all(other.get(key) == value for other in others)}


def _no_path(value: Any) -> Any:
    """A whole value; one with a URL in it, which may hold a password, is not told."""
    if not isinstance(value, str):
        return value
    return "URL" if "://" in value else PurePath(value).name if "/" in value else value


def _digits(values: Any) -> Any:
    return [_digits(value) for value in values] if isinstance(values, list) else round(float(values), 4)


def _rounded(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.5g}")


def _dumps(about: Mapping[str, Any], cells: Mapping[str, Mapping[str, Any]]) -> str:
    """One line a cell, so that a cell that is new is one line that is new; settings that all share are told once."""
    common = _common([cell["settings"] for cell in cells.values()])
    head = ",\n".join(f"{json.dumps(key)}: {_one(value)}" for key, value in {**about, "settings": common}.items())
    told = {
        name: {**cell, "settings": {key: value for key, value in cell["settings"].items() if key not in common}}
        for name, cell in cells.items()
    }
    body = ",\n".join(f"{json.dumps(name)}: {_one(cell)}" for name, cell in told.items())
    return f'{{\n{head},\n"cells": {{\n{body}\n}}\n}}\n'


def _one(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(", ", ": "))
