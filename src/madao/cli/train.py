"""`madao train`: train a model and learn its policy, in one command."""

import argparse
import dataclasses
import shlex
import signal
from pathlib import Path

from madao.cli import say
from madao.cli.help import help_text, requested_section
from madao.cli.parser import Parser, current_options
from madao.cli.recipes import recipe_path
from madao.config.train_config import TrainConfig, free_settings
from madao.distributed.group import ProcessGroup
from madao.errors import SharedError, UserError
from madao.policy.describe import preferred
from madao.text import nearest
from madao.training.builders.run import build_run
from madao.training.interrupt import Interrupted
from madao.training.monitor.advice import describe_run, model_advice
from madao.training.run.result import Result
from madao.training.trainer import Trainer

_EXAMPLES = (
    "--data.root photos/ --out runs/photos",
    "--data.root photos/ --augment.method uniform --out runs/control",
    "--data.root photos/ --model.name resnet34 --data.size 128",
    "--recipe cifar10-wrn-28-2 --data.root data",
    "--out runs/photos --resume",
)


def command(arguments: list[str]) -> None:
    """Run `madao train`."""
    try:
        config = read_config(arguments)
        run = build_run(config)
        if run.ranks.is_first:
            for line in describe_run(run):
                say(line)
        result = _fit(Trainer(run))
    except (UserError, Interrupted) as error:
        ranks = ProcessGroup.current()
        if ranks.is_first:
            raise
        if not isinstance(error, SharedError | Interrupted):
            raise UserError(f"process {ranks.rank} of {ranks.world}: {error}") from None
        # The first process reports it.
        raise SystemExit(error.exit_code if isinstance(error, Interrupted) else 2) from None
    if ProcessGroup.current().is_first:
        from madao.report.run import read_run  # slow to import

        lines = summary(result, config.outer.learn == "strength", read_run(Path(result.out)).unlearned)
        if (advice := model_advice(run)) is not None:
            lines.insert(1, advice)
        for line in lines:
            say(line)


def _fit(trainer: Trainer) -> Result:
    """Train, and tell how to resume if a signal stops the run."""
    directory = trainer.run.directory
    try:
        return trainer.fit()
    except Interrupted as stop:
        raise Interrupted(stop.number, f"{stop}; {_how_to_resume(directory.path)}") from None
    except KeyboardInterrupt:  # outside a training step, or a second Ctrl-C
        if directory.saved_config() is None:
            raise
        kept = "there is no checkpoint yet" if directory.checkpoints.empty else "the last checkpoint is kept"
        raise Interrupted(signal.SIGINT, f"stopped immediately, {kept}; {_how_to_resume(directory.path)}") from None


def _how_to_resume(path: Path) -> str:
    return f"resume with: madao train --out {shlex.quote(str(path))} --resume"


def read_config(arguments: list[str]) -> TrainConfig:
    """Return the configuration: defaults, then YAML files in their order, then flags.

    Raises:
        UserError: A setting is unknown or its value is not valid.
        SystemExit: The arguments ask for help, which is printed.
    """
    parser = Parser(
        prog="madao train",
        usage="madao train [OPTIONS]",
        description="Train a model and learn its augmentation policy. Settings come from --recipe, --config and "
        "options; later ones override earlier ones.",
    )
    parser.add_files()
    parser.add_settings()
    if (section := requested_section(arguments)) is not None:
        print(help_text(parser, section, _EXAMPLES), end="")
        raise SystemExit(0)
    arguments = _with_saved_settings(with_recipes(current_options(arguments)))
    found = parser.instantiate(parser.parse_args(arguments))
    names = {field.name for field in dataclasses.fields(TrainConfig)}
    return TrainConfig(**{name: value for name, value in vars(found).items() if name in names})


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


def summary(result: Result, equal_selection: bool = False, unlearned: str | None = None) -> list[str]:
    """Return the last lines of `madao train`: the result and the next commands.

    Args:
        result: The result of the run.
        equal_selection: Whether the settings keep all operations equally likely (`outer.learn=strength`).
        unlearned: The reason why the policy did not change although it should have.
    """
    measured = {"test": result.test_error, "validation": result.validation_error}
    known = {split: error for split, error in measured.items() if error is not None}
    errors = ", ".join(f"{split} {result.error} {100 * error:.2f} %" for split, error in known.items())
    lacking = "; no test set" if result.test_error is None else ""
    lines = [f"{errors or 'trained, nothing measured'} (epoch {result.epoch}{lacking})"]
    if unlearned is not None:
        lines.append(f"the policy did not change: {unlearned}")
    elif result.policy and equal_selection:
        lines.append("the policy learned how often and how strongly; operations are equally likely, as set")
    elif result.policy and not preferred(result.policy.values()):
        lines.append(f"the policy prefers hardly any operation; its most frequent ones are {result.favoured(2)}, …")
    elif result.policy:
        lines.append(f"the policy's most frequent operations are {result.favoured(4)}, …")
    out = shlex.quote(result.out)
    lines.append(f"see the run:     madao report {out}")
    if result.policy and unlearned is None:
        lines.append(f"export policy:   madao export {out} --to torchvision")
    if known:
        split = "" if "test" in known else " --split validation"
        lines.append(f"evaluate again:  madao evaluate {out}{split}")
    return lines
