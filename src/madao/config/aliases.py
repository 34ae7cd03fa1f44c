"""Old names of settings and methods, which files and command lines of earlier versions have."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from madao.errors import UserError

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
    "tensorboard": "logger",
    "test_with": "eval_checkpoint",
}
SWITCHES = {"tensorboard": ("tensorboard", "none")}
"""Old names of switches, with what true and false mean today."""
METHODS = {"madao": "learned", "standard": "base"}

_METHOD = "augment.method"
_PLANNED = frozenset(("every", "lr", "batch_size", "train_batch_size"))
"""Settings of `outer` that a budget decides about where they are left open. Files of runs have all of them."""
_TRUE, _FALSE = ("true", "yes", "on"), ("false", "no", "off")


def current_method(name: str) -> str:
    """Return the name that a method has today."""
    return METHODS.get(name, name)


def old_names(method: str) -> list[str]:
    """Return the names that a method had in earlier versions."""
    return [name for name, now in METHODS.items() if now == method]


def method_folder(folder: Path, method: str) -> Path:
    """Return the folder of a method's runs: that of its old name, where an older version began the comparison."""
    old = next((folder / name for name in old_names(method) if (folder / name).is_dir()), None)
    if old is not None and (folder / method).is_dir():
        raise UserError(f"{folder} holds {old.name} and {method}, which are one method today; rename one of the two")
    return folder / method if old is None else old


def current_cell(name: str) -> str:
    """Return the name that a cell, a method and a seed, has today: `"madao 0"` is `"learned 0"`."""
    method, _, seed = name.rpartition(" ")
    return f"{current_method(method)} {seed}"


def current_arguments(arguments: Sequence[str]) -> list[str]:
    """Return a command line with the flags that settings have today."""
    pairs = zip(arguments, ["", *arguments], [*arguments, ""][1:], strict=False)
    return [
        _current_flag(argument, following)
        if argument.startswith("--")
        else str(current_value(before[2:] if before.startswith("--") else "", argument))
        for argument, before, following in pairs
    ]


def _current_flag(argument: str, following: str) -> str:
    name, *value = argument[2:].split("=", 1)
    plain = name.removesuffix("+")  # --augment.exclude+=Invert adds to a list
    if name in SWITCHES and not value and following.lower() not in _TRUE + _FALSE:
        value = ["true"]
    values = [str(current_value(name, each)) for each in value]
    return "--" + "=".join([SETTINGS.get(plain, plain) + name[len(plain) :], *values])


def current_value(old: str, value: Any) -> Any:
    """Return the value that a setting under its old name has today."""
    word = str(value).lower()
    if old not in SWITCHES or word not in _TRUE + _FALSE:
        return value
    return SWITCHES[old][word in _FALSE]


def current_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings by the dotted names they have today, and the method by its name of today."""
    found = {SETTINGS.get(name, name): current_value(name, value) for name, value in settings.items()}
    if isinstance(found.get(_METHOD), str):
        found[_METHOD] = current_method(found[_METHOD])
    return found


def current_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the content of a config.yaml, settings nested by section, under the names of today."""
    found = {key: dict(value) if isinstance(value, Mapping) else value for key, value in config.items()}
    for old, now in SETTINGS.items():
        section, _, name = old.rpartition(".")
        before = found.get(section) if section else found
        if isinstance(before, dict) and name in before:
            section, _, new = now.rpartition(".")
            after = found.setdefault(section, {}) if section else found
            after[new] = current_value(old, before.pop(name))
    augment = found.get("augment")
    pretrained = isinstance(found.get("model"), dict) and found["model"].get("pretrained")
    # A whole run, not a recipe, from before there was a choice.
    if pretrained and {"out", "resume"} <= found.keys() and isinstance(augment, dict):
        augment.setdefault("statistics", "data")
    if isinstance(augment, dict) and isinstance(augment.get("method"), str):
        augment["method"] = current_method(augment["method"])
    outer = found.get("outer")
    if isinstance(outer, dict) and outer.keys() >= _PLANNED and "budget" not in outer:
        outer["budget"] = 0.0  # of a version without one: what is null there was never planned
    return current_settings(found)


def current_record(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return a record of `madao compare --export` under current names. Its command line is unchanged."""
    names = {name: current_cell(name) for name in record["cells"]}
    # A variant of an older version may have had a name that is a method's today: then both keep theirs.
    taken = {name for name, now in names.items() if now != name and now in names}
    cells = {name if name in taken else names[name]: _with_settings(cell) for name, cell in record["cells"].items()}
    return {**_with_settings(record), "cells": cells}


def _with_settings(part: Mapping[str, Any]) -> dict[str, Any]:
    return {**part, "settings": current_settings(part.get("settings", {}))}
