"""The command line of `madao compare`."""

import dataclasses
import itertools
import json
from pathlib import Path
from typing import Any

from madao.cli.parser import Parser, current_options
from madao.cli.train import name_images, with_recipes
from madao.config.aliases import METHODS as OLD_METHODS
from madao.config.aliases import current_arguments, current_method
from madao.config.plain_yaml import read_yaml_file
from madao.config.train_config import TrainConfig
from madao.errors import UserError
from madao.experiments.compare_config import CompareConfig, Plan
from madao.experiments.table import TUNED
from madao.text import nearest
from madao.training.builders.policy import METHODS, build_policy

_DEFAULT = ("base", "uniform", TUNED, "learned")
_OURS = {"--seed": "--seeds", "--augment.method": "--methods", "--resume": "the same command to resume"}
MORE = """
All options of madao train, --recipe and --config apply to every training.
Settings that differ between methods go into the file of --variants, with the name
of a method and its settings on each line:

  s60: {outer.every: 60}
  no products: {outer.solver: identity, outer.lr: 0.03}
  theirs: {augment.method: policy.json}

examples:
  madao compare photos/ --seeds 5 --out runs/photos
  madao compare --recipe cifar10-wrn-28-2 --data.root data --jobs 3
  madao compare --methods base,s60 --variants mine.yaml --seeds 0,1,7 --out runs/mine"""


def read_plan(arguments: list[str]) -> Plan:
    """Return the plan of a command line: defaults, then YAML files in their order, then flags.

    Raises:
        UserError: An option, a method, a variant or a value is not valid.
    """
    arguments = current_options(arguments)
    given = {argument.split("=")[0] for argument in arguments if argument.startswith("--")}
    for flag, instead in _OURS.items():
        if flag in given:
            raise UserError(f"madao compare sets {flag} for each training; use {instead}")
    parser = own_parser()
    parser.add_settings(skip={"out"})
    arguments = name_images(arguments, parser)
    recipe = next((right for left, right in _pairs(arguments) if left == "--recipe"), None)
    arguments = with_recipes(arguments)
    chosen, base = _parsed(parser, arguments)
    if base.devices * base.num_nodes > 1:
        raise UserError("madao compare trains on one device at a time; leave out `devices` and `num_nodes`")
    variants = _variants(chosen.variants)
    names = _names(chosen.methods, variants)
    if TUNED in names and chosen.search.trials and "--augment.magnitude" in given:
        raise UserError(
            "madao compare searches for --augment.magnitude; leave it out, or add --search.trials 0 to use it"
        )
    methods = {}
    for name in names:
        flags = variants.get(name, {"augment.method": name})
        try:
            _, config = _parsed(
                parser, [*arguments, *current_arguments([f"--{key}={_flag(value)}" for key, value in flags.items()])]
            )
            build_policy(config.augment, None, 0)
        except UserError as error:
            raise UserError(f"variant {name}: {error}" if name in variants else str(error)) from None
        methods[name] = config
    data = base.data.name or ("digits" if base.data.root is None else Path(base.data.root).stem)
    folder = Path(chosen.out or f"runs/compare-{recipe or data}")
    return Plan(chosen, folder, base, methods, _seeds(str(chosen.seeds)))


def own_parser() -> Parser:
    """Return the parser of the options that only `madao compare` has."""
    parser = Parser(
        prog="madao compare",
        usage="madao compare [IMAGES] [OPTIONS] [SETTINGS OF madao train]",
        description="Train several methods over several seeds and write one table: mean test error with its 95 % "
        "interval, paired differences to base, uniform and RandAugment, time and memory. Run the same command again "
        "to resume.",
    )
    parser.add_files()
    parser.add_class_arguments(CompareConfig, as_group=False)
    parser.finish()
    return parser


def _parsed(parser: Parser, arguments: list[str]) -> tuple[CompareConfig, TrainConfig]:
    found = vars(parser.instantiate(parser.parse_args(arguments)))
    own, theirs = ({field.name for field in dataclasses.fields(part)} for part in (CompareConfig, TrainConfig))
    return (
        CompareConfig(**{name: value for name, value in found.items() if name in own}),
        TrainConfig(**{name: value for name, value in found.items() if name in theirs - own}),
    )


def _pairs(arguments: list[str]) -> list[tuple[str, str]]:
    """Return options with their values, for `--name value` and `--name=value`."""
    return [
        (left, right if equals else after)
        for argument, after in itertools.pairwise([*arguments, ""])
        for left, equals, right in [argument.partition("=")]
    ]


def _variants(path: str | None) -> dict[str, dict[str, Any]]:
    """Return the settings of each variant by dotted name."""
    if path is None:
        return {}
    try:
        content = read_yaml_file(Path(path).expanduser())
    except FileNotFoundError:
        raise UserError(f"--variants {path}: no such file") from None
    if not isinstance(content, dict) or not all(isinstance(value, dict) for value in content.values()):
        raise UserError(f"--variants {path}: each line needs a name and settings, as in s60: {{outer.every: 60}}")
    for name in content:
        if (
            not isinstance(name, str)
            or name in (*METHODS, *OLD_METHODS)
            or set(name) & set("/\\,")
            or name.startswith(".")
        ):
            raise UserError(
                f"--variants {path}: {name!r} cannot name a variant; use a name without / or , that is not a method"
            )
    return {name: {"augment.method": "learned", **_flat(value)} for name, value in content.items()}


def _flat(settings: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested settings by dotted name. The value of `augment.limits` is a dictionary and stays one."""
    flat: dict[str, Any] = {}
    for key, value in settings.items():
        nested = isinstance(value, dict) and prefix + key != "augment.limits"
        flat |= _flat(value, f"{prefix}{key}.") if nested else {prefix + key: value}
    return flat


def _flag(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _names(methods: str | None, variants: dict[str, Any]) -> list[str]:
    if methods is None:
        return [*_DEFAULT, *variants]
    known = [*METHODS, *variants]
    names = [current_method(name.strip()) for name in methods.strip("[]").split(",") if name.strip()]
    for name in names:
        if name not in known:
            hint = "; to use a policy.json, add it to --variants" if "/" in name or name.endswith(".json") else ""
            raise UserError(f"unknown method {nearest(name, known)}{hint}")
    if not names:
        raise UserError("--methods must name at least one method")
    return list(dict.fromkeys(names))


def _seeds(text: str) -> list[int]:
    try:
        numbers = [int(part) for part in text.strip("[]").split(",") if part.strip()]
    except ValueError:
        numbers = []
    seeds = numbers if "," in text or "[" in text else list(range(numbers[0])) if numbers else []
    if not seeds:
        raise UserError(f"--seeds must be a number of seeds (3) or a list of them (0,1,7), got {text!r}")
    return list(dict.fromkeys(seeds))
