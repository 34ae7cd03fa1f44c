"""`madao train`: train a model and learn its policy, in one command."""

import dataclasses
import itertools
import shlex
import signal
from pathlib import Path

from madao.cli import with_flags
from madao.cli.help import asked_for, section
from madao.cli.parser import Parser, with_values
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
    """Train as the command line says."""
    try:
        config = read_config(arguments)
        run = build_run(config)
        if run.ranks.is_first:
            print(with_flags("\n".join(describe_run(run))), flush=True)
        result = _fit(Trainer(run))
    except (UserError, Interrupted) as error:
        ranks = ProcessGroup.current()
        if ranks.is_first:
            raise
        if not isinstance(error, SharedError | Interrupted):
            raise UserError(f"process {ranks.rank} of {ranks.world}: {error}") from None
        raise SystemExit(error.exit_code if isinstance(error, Interrupted) else 2) from None  # the first one says it
    if ProcessGroup.current().is_first:
        from madao.report.run import read_run  # which takes a while to import

        lines = summary(result, config.outer.learn == "strength", read_run(Path(result.out)).unlearned)
        if (advice := model_advice(run)) is not None:
            lines.insert(1, with_flags(advice))
        print("\n".join(lines), flush=True)


def _fit(trainer: Trainer) -> Result:
    """Train. Where a signal stops the run, say how to go on with it."""
    directory = trainer.run.directory
    try:
        return trainer.fit()
    except Interrupted as stop:
        raise Interrupted(stop.number, f"{stop}; {_how_to_resume(directory.path)}") from None
    except KeyboardInterrupt:  # in no step, or for the second time
        if directory.saved_config() is None:
            raise
        kept = "there is no checkpoint yet" if directory.checkpoints.empty else "the last checkpoint is kept"
        raise Interrupted(signal.SIGINT, f"stopped at once, {kept}; {_how_to_resume(directory.path)}") from None


def _how_to_resume(path: Path) -> str:
    return f"go on with: madao train --out {shlex.quote(str(path))} --resume"


def read_config(arguments: list[str]) -> TrainConfig:
    """The configuration: defaults, then YAML files in their order, then flags."""
    parser = Parser(
        prog="madao train",
        usage="madao train [OPTIONS]",
        description="Train a model and learn its augmentation policy. Settings come from --recipe or --config and from "
        "flags, the last one counts.",
    )
    parser.add_argument("--config", action="config", help="A YAML file of settings, named as the flags are.")
    parser.add_argument("--recipe", type=str, help="A recipe by name; madao recipes lists them.")
    parser.add_settings()
    if (name := asked_for(arguments)) is not None:
        fields = dataclasses.fields(TrainConfig)
        sections = [field.name for field in fields if dataclasses.is_dataclass(field.type)]
        print(section(parser.format_help(), sections, name, "train", _EXAMPLES), end="")
        raise SystemExit(0)
    arguments = _resumed(with_recipes(with_values(arguments, parser)))
    found = parser.instantiate(parser.parse_args(arguments))
    names = {field.name for field in dataclasses.fields(TrainConfig)}
    return TrainConfig(**{name: value for name, value in vars(found).items() if name in names})


def with_recipes(arguments: list[str]) -> list[str]:
    """`--recipe NAME` as the `--config` it stands for."""
    expanded: list[str] = []
    rest = iter(arguments)
    for argument in rest:
        name, equals, value = argument.partition("=")
        if name != "--recipe":
            expanded.append(argument)
            continue
        expanded += ["--config", str(recipe_path(value if equals else next(rest, "")))]
    return expanded


def _resumed(arguments: list[str]) -> list[str]:
    """With the settings of the run that is resumed in front, so that they need not be said again."""
    values = dict(itertools.pairwise(arguments))
    values |= dict(argument.split("=", 1) for argument in arguments if argument.startswith("--") and "=" in argument)
    if values.get("--resume", "").lower() != "true":
        return arguments
    saved = Path(values["--out"]) / "config.yaml" if "--out" in values else None
    if saved is not None and saved.is_file():
        return ["--config", str(saved), *arguments]
    given = {argument[2:].split("=")[0] for argument in arguments if argument.startswith("--")}
    if given <= free_settings() - {
        "data.root"
    }:  # a job that says what to train may be begun and gone on with by one command
        raise UserError(_which_run() if saved is None else _no_run(saved.parent))
    return arguments


def _which_run() -> str:
    known = [str(path.parent) for path in sorted(Path("runs").glob("*/config.yaml"))]
    there = f"; there are {', '.join(known)}" if known else ""
    return f"which run is to be resumed? name its folder by --out{there}"


def _no_run(out: Path) -> str:
    remedy = "name the folder of a run by --out, or leave out --resume to begin one"
    beside = [str(path.parent) for path in sorted(out.parent.glob("*/config.yaml"))]
    return f"there is no run to resume in {nearest(str(out), beside) if beside else repr(str(out))}; {remedy}"


def summary(result: Result, alike_by_choice: bool = False, unlearned: str | None = None) -> list[str]:
    """The last lines: the result, and what to do next.

    Args:
        result: Of the run.
        alike_by_choice: Whether which operations are chosen was not to be learned.
        unlearned: The reason why a policy that should learn did not change.
    """
    measured = {"test": result.test_error, "validation": result.validation_error}
    known = {split: error for split, error in measured.items() if error is not None}
    errors = ", ".join(f"{split} {result.error} {100 * error:.2f} %" for split, error in known.items())
    lacking = "; there is no test set" if result.test_error is None else ""
    lines = [f"{errors or 'trained, and nothing measured'} (epoch {result.epoch}{lacking})"]
    if unlearned is not None:
        lines.append(with_flags(f"the policy did not change: {unlearned}"))
    elif result.policy and alike_by_choice:
        lines.append("the policy chooses all alike, as asked, and has learned how often and how strongly")
    elif result.policy and not preferred(result.policy.values()):
        lines.append(f"the policy has learned next to nothing of what to prefer: it chooses {result.favoured(2)}, …")
    elif result.policy:
        lines.append(f"the policy chooses {result.favoured(4)}, …")
    out = shlex.quote(result.out)
    lines.append(f"look at it:    madao report {out}")
    if result.policy and unlearned is None:
        lines.append(f"take it away:  madao export {out} --to torchvision")
    if known:
        split = "" if "test" in known else " --split validation"
        lines.append(f"measure again: madao evaluate {out}{split}")
    return lines
