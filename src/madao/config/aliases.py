"""Old names of settings and methods, for files and command lines of earlier versions."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

SETTINGS = {
    "augment.condition": "augment.conditional_on",
    "augment.start": "augment.init_magnitude",
    "augment.variation": "augment.magnitude_jitter",
    "augment.without": "augment.exclude",
    "data.images": "data.max_images",
    "data.memory": "data.cache_gib",
    "data.planted": "data.shift",
    "data.validation": "data.val_fraction",
    "outer.memory": "outer.history",
    "outer.mode": "outer.model_mode",
    "outer.pull": "outer.init_decay",
    "task.splits": "task.bn_splits",
    "test_with": "eval_checkpoint",
}
METHODS = {"madao": "learned", "standard": "base"}

_METHOD = "augment.method"


def current_method(name: str) -> str:
    """Return the current name of a method."""
    return METHODS.get(name, name)


def method_folder(folder: Path, method: str) -> Path:
    """Return the folder of a method's runs, under the method's old name if an older version created it."""
    old = [folder / name for name, now in METHODS.items() if now == method]
    return next((path for path in old if path.is_dir()), folder / method)


def current_cell(name: str) -> str:
    """Return the current name of a cell, such as `"learned 0"` for `"madao 0"`."""
    method, *rest = name.split(" ", 1)
    return " ".join([current_method(method), *rest])


def current_arguments(arguments: Sequence[str]) -> list[str]:
    """Return a command line with old flags replaced by current ones."""
    return [_current_flag(argument) if argument.startswith("--") else argument for argument in arguments]


def _current_flag(argument: str) -> str:
    name, *value = argument[2:].split("=", 1)
    return "--" + "=".join([SETTINGS.get(name, name), *value])


def current_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings, keyed by dotted name, under their current names and with the method's current name."""
    found = {SETTINGS.get(name, name): value for name, value in settings.items()}
    if isinstance(found.get(_METHOD), str):
        found[_METHOD] = current_method(found[_METHOD])
    return found


def current_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the content of a config.yaml, nested by section, under current names."""
    found = {key: dict(value) if isinstance(value, Mapping) else value for key, value in config.items()}
    for old, now in SETTINGS.items():
        section, _, name = old.rpartition(".")
        before = found.get(section) if section else found
        if isinstance(before, dict) and name in before:
            section, _, new = now.rpartition(".")
            after = found.setdefault(section, {}) if section else found
            after[new] = before.pop(name)
    augment = found.get("augment")
    if isinstance(augment, dict) and "method" in augment:
        augment["method"] = current_method(augment["method"])
    return current_settings(found)


def current_record(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return a record of `madao compare --export` under current names. Its command line is unchanged."""
    cells = {current_cell(name): _with_settings(cell) for name, cell in record["cells"].items()}
    return {**_with_settings(record), "cells": cells}


def _with_settings(part: Mapping[str, Any]) -> dict[str, Any]:
    return {**part, "settings": current_settings(part.get("settings", {}))}
