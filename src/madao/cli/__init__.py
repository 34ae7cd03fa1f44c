"""The `madao` command, with one module per verb."""

import importlib
import re
import sys

import madao
from madao.text import printable

VERBS = {
    "train": "train a model and learn its augmentation policy",
    "compare": "compare augmentation methods over several seeds",
    "report": "write an HTML report of one or more runs",
    "evaluate": "measure the error of a trained model",
    "predict": "classify image files with a trained model",
    "demo": "shift the test digits and see the policy find the shift",
    "recipes": "list ready-made settings, with the paper's results",
    "preview": "draw sample images under a policy",
    "export": "write a model or a policy for use without madao",
    "completion": "print a script with which a shell completes commands",
}

# Installed by pip install 'madao[train]' only.
_OF_TRAIN = {"jsonargparse", "lightning_fabric", "matplotlib", "rich", "scipy", "sklearn", "tensorboard", "torchvision"}
_OF_TRAIN |= {"safetensors", "yaml"}


def main(arguments: list[str] | None = None) -> int:
    """Run the command line and return its exit code.

    Args:
        arguments: The verb and its arguments. By default those of the process.
    """
    arguments = sys.argv[1:] if arguments is None else arguments
    try:
        if arguments[:1] == ["help"]:  # madao help train: madao train --help
            arguments = [*arguments[1:2], "--help"]
        if not arguments or arguments[0] in ("-h", "--help"):
            print(_overview())
            return 0
        if arguments[0] == "--version":
            print(f"madao {madao.__version__}")
            return 0
        return _run(*arguments)
    except KeyboardInterrupt:  # also while torch is imported
        # Once a run has started, its command reports more.
        when = " before training began; run the same command again" if arguments[:1] == ["train"] else ""
        print(f"madao: stopped{when}", file=sys.stderr)
        return 130
    except BrokenPipeError:  # the reader of the pipe has closed it
        sys.stderr.close()
        return 1
    except OSError as error:
        print(printable(f"madao: {error.filename or 'the file system'}: {error.strerror or error}"), file=sys.stderr)
        return 2


def _run(verb: str, *arguments: str) -> int:
    """Run a command and report errors of the user in one line."""
    # Imported here, since they import torch, which takes seconds.
    from madao.errors import MadaoError
    from madao.training.interrupt import Interrupted

    try:
        _call(verb, [*arguments])
    except MadaoError as error:
        print(printable(f"madao: {with_flags(str(error))}"), file=sys.stderr)
        return 2
    except Interrupted as stop:
        print(printable(f"madao: {stop}"), file=sys.stderr)
        return stop.exit_code
    except SystemExit as stop:  # raised by argparse after --help
        return int(stop.code or 0)
    return 0


def with_flags(message: str) -> str:
    """Return a message with its settings, in backticks, written as flags, or as plain names if they have no flag.

    >>> with_flags("`data.size` must be at least 1; try `batch_size=64`")
    '--data.size must be at least 1; try --batch_size 64'
    """
    from madao.config.train_config import NOT_OPTIONS

    def flag(found: re.Match[str]) -> str:
        name = found["name"] if found["name"] in NOT_OPTIONS else f"--{found['name']}"
        return name if found["value"] is None else f"{name} {found['value']}"

    return re.sub(r"`(?P<name>[a-z_]+(?:\.[a-z_]+)?)(?:=(?P<value>[^`]*))?`", flag, message)


def say(line: str) -> None:
    """Print a line with its settings written as flags, and without escape sequences that a file may have brought."""
    print(printable(with_flags(line)), flush=True)


def _call(verb: str, arguments: list[str]) -> None:
    from madao.errors import UserError
    from madao.text import nearest

    if verb not in VERBS:
        raise UserError(f"unknown command {nearest(verb, VERBS)}")
    # Imported here, so that no verb waits for the imports of another.
    try:
        importlib.import_module(f"madao.cli.{verb}").command(arguments)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] not in _OF_TRAIN:
            raise
        raise UserError(f"{error.name} is not installed; commands need: pip install 'madao[train]'") from None


def _overview() -> str:
    width = max(map(len, VERBS))
    verbs = "\n".join(f"  {verb:<{width}}  {text}" for verb, text in VERBS.items())
    return f"usage: madao COMMAND [OPTIONS]\n\n{verbs}\n\nOptions of a command: madao COMMAND --help"
