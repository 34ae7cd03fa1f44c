"""The folder of a comparison: its settings and images, and whether a plan may add to it."""

import dataclasses
from pathlib import Path
from typing import Any

import yaml

from madao.config.plain_yaml import read_yaml_file
from madao.config.train_config import DataConfig, Plain, TrainConfig, from_dict, to_dict
from madao.errors import UserError
from madao.experiments.compare_config import Plan
from madao.experiments.dataset_hash import dataset_hash
from madao.experiments.table import TUNED
from madao.files import replacing
from madao.training.run.directory import RunDirectory, first_difference
from madao.training.splits import load_dataset

FILE = "compare.yaml"
_SHARED = "/"
"""The key of the images that cells share, beside the names of variants, which contain no slash."""


def read_folder(folder: Path) -> dict[str, Any] | None:
    """Return `settings`, `data` (hashes of images) and `jobs` of the comparison in a folder; None if there is none."""
    try:
        found = read_yaml_file(folder / FILE)
    except (FileNotFoundError, NotADirectoryError):
        return None
    kinds = {"settings": dict, "jobs": int, "data": dict | None}
    if not isinstance(found, dict) or any(not isinstance(found.get(key), kind) for key, kind in kinds.items()):
        raise UserError(f"{folder / FILE} is damaged; restore it, or choose another `out`")
    return found


def check_folder(plan: Plan) -> None:
    """Raise if the folder does not suit the plan, before any training."""
    folder, saved = plan.folder, read_folder(plan.folder)
    unjudged = {name: config for name, config in plan.methods.items() if not config.data.val_fraction}
    for name, config in unjudged.items():
        _check_without_validation(name, config, plan.chosen.search.trials)
    if saved is None:
        if folder.exists() and not (folder.is_dir() and {path.name for path in folder.iterdir()} <= {"lock"}):
            raise UserError(f"{folder} exists and holds no comparison; choose another `out`")
        _check_data(plan.base.data, {name: config.data for name, config in unjudged.items()})
        return
    difference = first_difference(to_dict(from_dict(saved["settings"])), _shared_settings(plan.base))
    if difference is not None:
        key, before, now = difference
        raise UserError(
            f"the comparison in {folder} was started with {_assigned(key, before)}, not {_assigned(key, now)}; all its "
            f"cells share this setting: choose another `out`, put `{key}` into a variant, or restore it"
        )
    for method in plan.methods:
        for seed in plan.seeds if method != TUNED else ():
            config = plan.run_config(method, seed)
            RunDirectory(Path(str(config.out))).check(config)


def begin_folder(plan: Plan) -> str | None:
    """Write the settings and hashes of the comparison.

    Returns:
        The hash of the images that cells share; None if they cannot be read.

    Raises:
        UserError: The images differ from those of the comparison.
    """
    saved = read_folder(plan.folder) or {"settings": _shared_settings(plan.base), "jobs": 0}
    before = dict(saved.get("data") or {})
    now = {_SHARED: _hash(plan.base.data)}
    own = {name: config.data for name, config in plan.methods.items() if config.data != plan.base.data}
    now |= {name: _hash(data) for name, data in own.items()}
    for name, found in now.items():
        if found is not None and before.get(name, found) != found:
            whose = "" if name == _SHARED else f" of {name}"
            raise UserError(
                f"the images{whose} differ from those that the comparison in {plan.folder} was started with; restore "
                "them, or choose another `out`"
            )
    saved["data"] = before | {name: found for name, found in now.items() if found is not None}
    # Trainings that share a device are slower: the record tells the largest number at a time.
    saved["jobs"] = max(saved["jobs"], plan.chosen.jobs)
    with replacing(plan.folder / FILE) as file:
        file.write(yaml.safe_dump(saved, sort_keys=False, allow_unicode=True).encode())
    shared: str | None = saved["data"].get(_SHARED)
    return shared


def _check_without_validation(name: str, config: TrainConfig, trials: int) -> None:
    if config.augment.method == "learned":
        raise UserError(f"`data.val_fraction=0` leaves no images for {name} to learn from")
    if name == TUNED and trials:
        raise UserError(
            "RandAugment's magnitude is chosen by validation error, and `data.val_fraction=0` sets no images aside; "
            "give `augment.magnitude`, with `search.trials=0`"
        )


def _check_data(shared: DataConfig, unjudged: dict[str, DataConfig]) -> None:
    """Raise if images cannot be read, or if methods without validation images have no test set either."""
    tested = [shared] if load_dataset(shared).test is not None else []  # listing many images takes a while
    for name, data in unjudged.items():
        if data not in tested and load_dataset(data).test is None:
            raise UserError(f"`data.val_fraction=0` leaves no images to judge {name} by, and there is no test set")
        tested.append(data)


def _assigned(key: str, value: Any) -> str:
    return f"`{key}` by default" if value is None else f"`{key}={value}`"


def _shared_settings(base: TrainConfig) -> Plain:
    """Return the settings that all cells share; method, seed and directory differ."""
    augment = dataclasses.replace(base.augment, method="learned")
    return to_dict(dataclasses.replace(base, augment=augment, seed=0, out=None, resume=False))


def _hash(data: DataConfig) -> str | None:
    """Hash images, after their download; None if they cannot be read, which each cell reports."""
    try:
        return dataset_hash(data)
    except UserError:
        if data.download:
            raise
        return None
