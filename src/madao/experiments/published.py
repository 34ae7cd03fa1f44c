"""Records of comparisons for publication: settings, curve and result of every cell, without paths of the machine."""

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
"""Largest size of a record in bytes. Curves have as many points as fit."""
_POINTS = (200, 100, 50, 25, 12, 6)
_CURVE = ("train_loss", "train_error", "validation_error")
_POLICY = ("selection", "application", "magnitude")
_ORIGIN = ("command", "jobs")
_OUTCOME = ("environment", "minutes", "test_error", "validation_error")
"""Entries that tell two trainings of a cell apart."""
_COST = ("speed.", "devices", "num_nodes", "data.decode", "data.cache_gib")
"""Settings that minutes and memory depend on, and no error does. They are published."""
_LEFT_OUT = {"seed", *(name for name in free_settings() if not name.startswith(_COST))}


def record(
    cells: Mapping[str, Mapping[int, Run]],
    about: Mapping[str, Any],
    search: Mapping[str, Any],
    before: Mapping[str, Any] | None = None,
) -> str:
    """Return a record as JSON of at most `LARGEST` bytes, provided that curves of 6 points fit.

    Args:
        cells: The runs by method and seed.
        about: The command and its number of jobs.
        search: The search for RandAugment's magnitude; empty if there was none.
        before: A record to add to. Its other cells stay and name the command that made them.
    """
    before = current_record(before) if before else {}
    origin = {key: before[key] for key in _ORIGIN if key in before and before[key] != about.get(key)}
    old = {
        name: {**origin, **cell, "settings": {**before.get("settings", {}), **cell["settings"]}}
        for name, cell in before.get("cells", {}).items()
    }
    new = {}
    for method, runs in cells.items():
        first = min([*runs, *(cell["seed"] for name, cell in old.items() if name == f"{method} {cell['seed']}")])
        for seed, run in runs.items():
            cell, known = _cell(run, whole_course=seed == first), old.get(f"{method} {seed}", {})
            if all(known.get(key) == cell[key] for key in _OUTCOME):  # an earlier command trained it
                cell |= {key: known[key] for key in _ORIGIN if key in known}
            new[f"{method} {seed}"] = cell
    head, text = {**about, "search": dict(search or before.get("search", {}))}, ""
    for points in _POINTS:
        text = _dumps(head, {name: _thinned(cell, points) for name, cell in {**old, **new}.items()})
        if len(text.encode()) <= LARGEST:
            break
    return text


def is_record(content: Any) -> bool:
    """Whether this is a record."""
    if not isinstance(content, dict) or not {"command", "search", "settings", "cells"} <= content.keys():
        return False
    cells = content["cells"]
    return isinstance(cells, dict) and all(
        isinstance(cell, dict) and {"seed", "settings"} <= cell.keys() for cell in cells.values()
    )


def settings(run: Run) -> dict[str, Any]:
    """Return the settings of a run by their dotted names, without those on where and how it ran."""
    return {key: _without_path(value) for key, value in dotted(run.config).items() if key not in _LEFT_OUT}


def without_paths(command: Sequence[str]) -> str:
    """Return a command line without URLs, and with the last names of paths alone."""
    options = [word.partition("=") for word in command]
    return shlex.join(
        f"{word}={_without_path(value)}"
        if equals and word.startswith("--")
        else str(_without_path(word + equals + value))
        for word, equals, value in options
    )


def _cell(run: Run, whole_course: bool) -> dict[str, Any]:
    """Return the entry of a run, with its policy over the whole training or only at the end."""
    measured = [i for i, error in enumerate(run.metrics.get("validation_error", ())) if error is not None]
    measured = measured or [*range(len(run.metrics.get("epoch", ())))]  # without validation images
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
    policy = run.path / "policy.json"
    if str(run.setting("augment.method")).endswith(".json") and policy.exists():  # settings only name the file
        content["policy_sha256"] = hashlib.sha256(policy.read_bytes()).hexdigest()
    course = run.trajectory
    if course is not None and course.epochs:
        kept = range(0 if whole_course else len(course.epochs) - 1, len(course.epochs))
        content["policy"] = {
            "operations": list(course.operations),
            "epochs": [course.epochs[i] for i in kept],
            **{name: [_digits(course.values[name][i].tolist()) for i in kept] for name in _POLICY},
        }
    return content


def _thinned(cell: Mapping[str, Any], points: int) -> dict[str, Any]:
    """Reduce the curve and the course of the policy to at most `points` points, evenly spaced."""
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
    """Return at most `most` of `count` indices, evenly spaced, with the first and the last."""
    return [*range(count)] if count <= most else [round(i * (count - 1) / (most - 1)) for i in range(most)]


def _common(all_settings: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the settings that all have in common."""
    if not all_settings:
        return {}
    first, *others = all_settings
    return {key: value for key, value in first.items() if all(other.get(key) == value for other in others)}


def _without_path(value: Any) -> Any:
    """Reduce a path to its last name and hide URLs, which may hold passwords."""
    if not isinstance(value, str):
        return value
    return "URL" if "://" in value else PurePath(value).name if "/" in value else value


def _digits(values: Any) -> Any:
    return [_digits(value) for value in values] if isinstance(values, list) else round(float(values), 4)


def _rounded(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.5g}")


def _dumps(about: Mapping[str, Any], cells: Mapping[str, Mapping[str, Any]]) -> str:
    """Write each cell on one line, for small diffs, and common settings once."""
    common = _common([cell["settings"] for cell in cells.values()])
    head = ",\n".join(f"{json.dumps(key)}: {_one(value)}" for key, value in {**about, "settings": common}.items())
    short = {
        name: {**cell, "settings": {key: value for key, value in cell["settings"].items() if key not in common}}
        for name, cell in cells.items()
    }
    body = ",\n".join(f"{json.dumps(name)}: {_one(cell)}" for name, cell in short.items())
    return f'{{\n{head},\n"cells": {{\n{body}\n}}\n}}\n'


def _one(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(", ", ": "))
