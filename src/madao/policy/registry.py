"""Policies by name, for commands and configuration files."""

import functools
import os
from collections.abc import Callable
from pathlib import Path

from madao.policy.base import AugmentationPolicy
from madao.policy.baselines.autoaugment import PUBLISHED, AutoAugment
from madao.policy.baselines.randaugment import RandAugment
from madao.policy.baselines.trivialaugment import TrivialAugment
from madao.policy.baselines.uniform import Uniform
from madao.policy.frozen import FrozenPolicy
from madao.policy.spec import PolicySpec
from madao.text import nearest

NAMED: dict[str, Callable[..., AugmentationPolicy]] = {
    "uniform": Uniform,
    "randaugment": RandAugment,
    "trivialaugment": TrivialAugment,
    "trivialaugment-normal": functools.partial(TrivialAugment, "normal"),
    **{f"autoaugment-{data}": functools.partial(AutoAugment, data) for data in PUBLISHED},
}


def load_policy(name_or_path: str | os.PathLike[str], seed: int = 0) -> AugmentationPolicy:
    """Return a built-in policy by name, or a learned one from its JSON file or its run directory.

    Names are "uniform", "randaugment", "trivialaugment", "trivialaugment-normal", "autoaugment-cifar10", ….

    Example:
        >>> policy = madao.load_policy("runs/photos")
    """
    name_or_path = os.fspath(name_or_path)
    if name_or_path in NAMED:
        return NAMED[name_or_path](seed=seed)
    if Path(name_or_path).is_dir():
        name_or_path = os.path.join(name_or_path, "policy.json")
    if Path(name_or_path).is_file():
        return FrozenPolicy(PolicySpec.load(name_or_path), seed)
    if name_or_path.endswith(".json") or "/" in name_or_path:
        raise FileNotFoundError(f"there is no policy file {name_or_path!r}")
    raise ValueError(f"unknown policy {nearest(name_or_path, NAMED)}; or give the path of a policy.json")
