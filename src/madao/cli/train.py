"""`madao train`: train a model and learn its policy, in one command."""

import argparse
import dataclasses
from pathlib import Path

from madao.cli.help import help_text, requested_section
from madao.cli.parser import Parser, current_options, name_positional, without_dry_run
from madao.cli.recipes import recipe_path
from madao.config.train_config import TrainConfig, free_settings
from madao.errors import UserError
from madao.text import nearest

_EXAMPLES = (
    "photos/ --out runs/photos",
    "photos/ --augment.method uniform --out runs/control",
    "photos/ --model.name resnet34 --data.size 128",
    "--recipe cifar10-wrn-28-2 --data.root data",
    "--out runs/photos --resume",
)


def command(arguments: list[str]) -> None:
    """Run `madao train`."""
    arguments, dry = without_dry_run(arguments)
    config = read_config(arguments)
    # These import torch, for which --help should not wait.
    if dry:
        from madao.cli.dry_run import rehearse_training

        rehearse_training(config)
    else:
        from madao.cli.training import train

        train(config)


def read_config(arguments: list[str]) -> TrainConfig:
    """Return the configuration: defaults, then YAML files in their order, then flags.

    Raises:
        UserError: A setting is unknown or its value is not valid.
        SystemExit: The arguments ask for help, which is printed.
    """
    parser = train_parser()
    if (section := requested_section(arguments)) is not None:
        print(help_text(parser, section, _EXAMPLES), end="")
        raise SystemExit(0)
    arguments = name_images(current_options(arguments), parser)
    arguments = _with_saved_settings(with_recipes(arguments))
    found = parser.instantiate(parser.parse_args(arguments))
    names = {field.name for field in dataclasses.fields(TrainConfig)}
    return TrainConfig(**{name: value for name, value in vars(found).items() if name in names})


def train_parser() -> Parser:
    """Return the parser of `madao train`."""
    parser = Parser(
        prog="madao train",
        usage="madao train [IMAGES] [OPTIONS]",
        description="Train a model and learn its augmentation policy. IMAGES is a folder or file, as for --data.root. "
        "Settings come from --recipe, --config and options; later ones override earlier ones.",
    )
    parser.add_files()
    parser.add_settings()
    return parser


def name_images(arguments: list[str], parser: Parser) -> list[str]:
    """Return a command line with the images, which may stand alone, as the value of `--data.root`.

    Raises:
        UserError: Several images stand alone, or the folder of a run does.
    """
    named = name_positional(arguments, "data.root", "folder or file of images", parser)
    if named != arguments:
        folder = Path(named[-1])
        if (folder / "config.yaml").is_file() and (folder / "checkpoints").is_dir():
            raise UserError(f"{folder} is the folder of a run, not of images; to resume it: --out {folder} --resume")
    return named


def with_recipes(arguments: list[str]) -> list[str]:
    """Return the arguments with each `--recipe NAME` replaced by `--config` and its file."""
    expanded: list[str] = []
    rest = iter(arguments)
    for argument in rest:
        name, equals, value = argument.partition("=")
        if name != "--recipe":
            expanded.append(argument)
            continue
        expanded += ["--config", str(recipe_path(value if equals else next(rest, "")))]
    return expanded


def _with_saved_settings(arguments: list[str]) -> list[str]:
    """Return the arguments with the settings of the run to resume in front, so that users need not repeat them."""
    first = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    first.add_argument("--resume", nargs="?", const="true", default="false")
    first.add_argument("--out", nargs="?")
    found, _ = first.parse_known_args(arguments)
    if found.resume.lower() != "true":
        return arguments
    saved = None if found.out is None else Path(found.out) / "config.yaml"
    if saved is not None and saved.is_file():
        return ["--config", str(saved), *arguments]
    given = {argument[2:].split("=")[0] for argument in arguments if argument.startswith("--")}
    # The same command may start and later resume a run if it says what to train.
    if given <= free_settings() - {"data.root"}:
        raise UserError(_which_run() if saved is None else _no_run(saved.parent))
    return arguments


def _which_run() -> str:
    known = [str(path.parent) for path in sorted(Path("runs").glob("*/config.yaml"))]
    there = f"; found {', '.join(known)}" if known else ""
    return f"--resume needs the folder of a run; name it with --out{there}"


def _no_run(out: Path) -> str:
    remedy = "name the folder of a run with --out, or leave out --resume to start one"
    beside = [str(path.parent) for path in sorted(out.parent.glob("*/config.yaml"))]
    return f"there is no run to resume in {nearest(str(out), beside) if beside else repr(str(out))}; {remedy}"
