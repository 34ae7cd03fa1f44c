"""Flags and YAML to function arguments and dataclasses, with errors of one line."""

import argparse
import difflib
import inspect
import json
import re
from collections.abc import Callable, Collection
from typing import Any, NoReturn

import jsonargparse
import yaml

from madao.config.aliases import current_arguments, current_config
from madao.config.train_config import NOT_OPTIONS, TrainConfig
from madao.errors import UserError

_read_yaml = jsonargparse.get_loader("yaml")


def _read_settings(text: str) -> Any:
    """Read YAML, with settings under the names they have today."""
    found = _read_yaml(text)
    return current_config(found) if isinstance(found, dict) else found


jsonargparse.set_loader("madao", _read_settings, (yaml.YAMLError,))


class Parser(jsonargparse.ArgumentParser):
    """jsonargparse, whose errors become `UserError`s that name the nearest known option; options are spelt out."""

    def __init__(self, *arguments: Any, **keywords: Any) -> None:
        super().__init__(*arguments, **{"allow_abbrev": False, "parser_mode": "madao", **keywords})

    def add_settings(self, skip: Collection[str] = ()) -> None:
        """Add an option for each setting of `madao train`. Those that are no options are read from YAML files only."""
        self.add_class_arguments(TrainConfig, as_group=False, skip={*skip})
        for action in self._actions:
            if action.dest in NOT_OPTIONS:
                action.help = argparse.SUPPRESS

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        """Raise what went wrong as one line."""
        raise UserError(_explain(message, _options(self), self.prog)) from None


def call(
    function: Callable[..., None], verb: str, arguments: list[str], plain: str | None = None, what: str = "run"
) -> None:
    """Call a function whose signature and docstring are its command line.

    Args:
        function: What to call.
        verb: The command.
        arguments: Of the command line.
        plain: The parameter that may be given without its name: `madao report RUN` for `madao report --runs RUN`.
        what: What that parameter names, in messages: "run".
    """
    parser = Parser(prog=f"madao {verb}", description=(function.__doc__ or "").split("\n")[0])
    parser.add_function_arguments(function, as_group=False)
    if plain is not None:
        parameter = inspect.signature(function).parameters[plain]
        several, one = parameter.annotation == list[str], what.upper()
        given = f"{one} [{one} …]" if several else one if parameter.default is parameter.empty else f"[{one}]"
        parser.usage = f"madao {verb} {given} [OPTIONS]"
        arguments = _named(arguments, plain, several, what, parser)
    found = parser.parse_args(with_values(arguments, parser))
    function(**vars(parser.instantiate(found)))


def _named(arguments: list[str], name: str, several: bool, what: str, parser: jsonargparse.ArgumentParser) -> list[str]:
    """With the values that no option takes under the name they belong to."""
    switches = _switches(parser)
    values: list[str] = []
    rest: list[str] = []
    taken = False
    for argument in arguments:
        option = argument.startswith("-")
        if (
            not option
            and not taken
            and (argument.lower() not in ("true", "false") or not rest or rest[-1] not in switches)
        ):
            values.append(argument)
        else:
            rest.append(argument)
        taken = option and "=" not in argument and argument not in switches and argument not in ("-h", "--help")
    if len(values) > 1 and not several:
        raise UserError(f"one {what} is expected, got {len(values)}: {' '.join(values)}")
    if not values:
        return rest
    if any(argument == f"--{name}" or argument.startswith(f"--{name}=") for argument in rest):
        raise UserError(f"what is {values[0]!r}? give --{name} by its name or without it, not both")
    return [f"--{name}", json.dumps(values, ensure_ascii=False) if several else values[0], *rest]


def with_values(arguments: list[str], parser: jsonargparse.ArgumentParser) -> list[str]:
    """`--resume` and the like mean `--resume true`; old names are those of today."""
    arguments = current_arguments(arguments)
    given = (argument[2:].split("=")[0] for argument in arguments if argument.startswith("--"))
    if (name := next((name for name in given if name in NOT_OPTIONS), None)) is not None:
        raise UserError(f"`{name}` is a setting for experiments and has no flag; write it into a file for `config`")
    switches = _switches(parser)
    complete = []
    for position, argument in enumerate(arguments):
        complete.append(argument)
        following = arguments[position + 1 : position + 2]
        if argument in switches and (not following or following[0].startswith("--")):
            complete.append("true")
    return complete


def _switches(parser: jsonargparse.ArgumentParser) -> set[str]:
    """The options that are true or false."""
    return {
        option
        for action in parser._actions
        if getattr(action, "_typehint", None) in (bool, bool | str, bool | None)
        for option in action.option_strings
    }


def _options(parser: jsonargparse.ArgumentParser) -> list[str]:
    shown = (action for action in parser._actions if action.help != argparse.SUPPRESS)
    return [option for action in shown for option in action.option_strings if option.startswith("--")]


def _explain(message: str, options: list[str], program: str) -> str:
    unknown = re.search(r"unrecognized arguments: (\S+)", message)
    unknown_key = re.search(r"""(?:[Oo]ption|Key) ['"]([\w.-]+)['"]""", message)
    mismatch = re.search(r'Parser key "([\w.]+)":\s+Expected a (.+?)\. Got value: (.*)', message, re.DOTALL)
    if unknown is not None:
        name = unknown[1].split("=")[0]
        if not name.startswith("-"):
            meant = f"did you mean '--data.root {name}'? " if "--data.root" in options else ""
            return f"no option stands before {name!r}; {meant}see {program} --help"
        return f"unknown option {name!r}; {_hint(name, options)}see {program} --help"
    if mismatch is not None:
        return f"--{mismatch[1]}: expected {_type_name(mismatch[2])}, got {_one_line(mismatch[3])!r}"
    if unknown_key is not None and "Expected" not in message:
        name = unknown_key[1]
        hint = _hint(f"--{name}", options).replace("--", "")
        return f"unknown setting {name!r}; {hint}see {program} --help"
    plain = re.sub(r'Parser key "([\w.]+)":', r"--\1:", _one_line(message))
    return f"{plain}; see {program} --help"


def _hint(name: str, options: list[str]) -> str:
    # The last part counts for itself, so that --learning_rate finds nothing and --lr finds --optimizer.lr.
    close = [option for option in options if option.split(".")[-1].lstrip("-") == name.split(".")[-1].lstrip("-")]
    close = close or difflib.get_close_matches(name, options, n=1)
    return f"did you mean {close[0]!r}? " if close else ""


def _type_name(text: str) -> str:
    choices = re.search(r"Literal\[(.+?)\]", text)
    if choices is not None:
        return f"one of {choices[1]}".replace("'", "")
    return (
        re.sub(r"<class '(\w+)'>", r"\1", _one_line(text)).replace("int", "a whole number").replace("float", "a number")
    )


def _one_line(text: str) -> str:
    return " ".join(text.split())
