"""Command lines and YAML files as function arguments and dataclasses, with one-line errors."""

import argparse
import difflib
import inspect
import json
import os
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NoReturn, get_origin

import jsonargparse
import yaml

from madao.config.aliases import current_arguments, current_config
from madao.config.checks import is_writable
from madao.config.plain_yaml import check_plain_yaml, read_yaml, read_yaml_file
from madao.config.train_config import NOT_OPTIONS, TrainConfig
from madao.config.typed import is_of
from madao.config.typed import words as words_of
from madao.errors import UserError
from madao.text import printable

_read_yaml = jsonargparse.get_loader("yaml")


def _read_value(text: str) -> Any:
    """Read a value of an option or of a file. A lone ~ is the home folder, as in a shell; the word null is no value."""
    if not is_writable(text):  # a path that is no UTF-8, or the list of such paths that `name_positional` makes
        return json.loads(text) if text.startswith('["') else text
    check_plain_yaml(text)
    return text if text.strip() == "~" else _read_yaml(text)


jsonargparse.set_loader("madao", _read_value, (yaml.YAMLError,))


DRY_RUN = "--dry-run"
_SWITCH_VALUES = ("true", "false", "yes", "no", "on", "off", "null", "~")
_SWITCHES = (bool, bool | str, bool | None)
_NO_SETTINGS = ("config", "dry_run", "help", "print_config", "recipe")
_PATHS = ("data.root", "export", "images", "out", "output", "root", "run", "runs", "variants")
"""Options whose value is a path: null is a file of that name."""


class _HelpFormatter(jsonargparse.DefaultHelpFormatter):
    """A formatter that shows defaults but no Python types: the placeholder of an option lists its choices."""

    def _get_help_string(self, action: argparse.Action) -> str:
        if action.nargs == 0:
            return str(action.help)
        if getattr(action, "_typehint", None) is None:
            return super()._get_help_string(action)
        default = str(action.default).lower() if isinstance(action.default, bool) else "%(default)s"
        shown = "" if action.default in (None, argparse.SUPPRESS) else f" (default: {default})"
        return f"{action.help}{' (required)' if action.required else shown}"


class Parser(jsonargparse.ArgumentParser):
    """A parser that raises `UserError` with the nearest known option, and takes `--resume` for `--resume true`."""

    def __init__(self, *arguments: Any, **keywords: Any) -> None:
        super().__init__(
            *arguments, allow_abbrev=False, parser_mode="madao", formatter_class=_HelpFormatter, **keywords
        )

    def add_files(self) -> None:
        """Add `--config` and `--recipe`."""
        self.add_argument("--config", action="config", help="YAML file of settings, named like the options.")
        self.add_argument("--recipe", type=str, help="Name of a recipe; madao recipes lists them.")
        self.add_argument(DRY_RUN, action="store_true", help="Train nothing; tell what would be trained, time, memory.")
        for action in self._actions:
            if action.dest == "print_config":
                action.help = "Print all settings as YAML and exit."

    def parse_args(self, args: Any = None, *arguments: Any, **keywords: Any) -> Any:
        """Parse a command line whose YAML files are read and checked first.

        jsonargparse only sees plain settings that exist. Left to itself, it imports the classes that a file names, and
        reads the files that it names.
        """
        given = [self._checked(option, value) for option, value in self._with_values([] if args is None else args)]
        found = super().parse_args([word for words in given for word in words], *arguments, **keywords)
        for action in self._actions:  # jsonargparse takes null for a setting that was not given
            expected = getattr(action, "_typehint", None)
            needed = action.default is not None and expected is not None and not is_of(None, expected)
            if needed and found.get(action.dest, "") is None:
                raise UserError(f"`{action.dest}`: expected {words_of(expected)}, got null")
        return found

    def _checked(self, option: str, value: str | None) -> list[str]:
        if value is None:
            return [option]
        if option.removeprefix("--") in _PATHS and value.lower() == "null":
            return [f"{option}=./{value}"]
        if option == "--config" and option in self._option_string_actions:
            return [f"--config={yaml.safe_dump(self._settings_of(value))}"]
        return [f"{option}={self._collected(option, value)}"]

    def _with_values(self, arguments: Iterable[str]) -> Iterator[tuple[str, str | None]]:
        """Yield each word, but options with a file, a path or several values together with the value that follows."""
        words = [*arguments]
        while words:
            word = words.pop(0)
            option, equals, value = word.partition("=")
            if option != "--config" and option.removeprefix("--") not in _PATHS and not self._collection_of(option):
                yield word, None
            elif equals:
                yield option, value
            else:
                yield option, words.pop(0) if words and not words[0].startswith("--") else None

    def _collection_of(self, option: str) -> type[Any] | None:
        """Return list or dict for an option that takes several values, None for others and for lists of paths."""
        name = option.removesuffix("+")
        kind = get_origin(getattr(self._option_string_actions.get(name), "_typehint", None))
        return kind if kind in (list, dict) and name.removeprefix("--") not in _PATHS else None

    def _collected(self, option: str, value: str) -> str:
        """Return `Invert,Solarize` and `Rotate=10,ShearX=0.2` as a list and a dictionary of YAML, others unchanged."""
        kind, parts = self._collection_of(option), [part.strip() for part in value.split(",") if part.strip()]
        if kind is list and not value.startswith("["):
            return json.dumps(parts)
        if kind is dict and all(re.fullmatch(r"[^={}:]+=[^={}:]+", part) for part in parts):
            return f"{{{', '.join(part.replace('=', ': ') for part in parts)}}}"
        return value

    def _settings_of(self, source: str) -> dict[str, Any]:
        """Return the settings in a YAML file, or in YAML itself, by current names."""
        try:
            path = os.path.expanduser(source)
            settings = read_yaml_file(Path(path)) if os.path.exists(path) else read_yaml(source)
        except yaml.YAMLError as error:
            raise UserError(f"--config {printable(source, 80)}: {' '.join(str(error).split())}") from None
        if isinstance(settings, str):
            raise UserError(f"--config {source}: there is no such file")
        if settings is None:
            return {}
        if not isinstance(settings, dict):
            raise UserError(f"--config {printable(source, 80)}: expected settings by name, as in epochs: 30")
        settings = current_config(settings)
        for section in self.groups or {}:
            if section in settings and settings[section] is None:  # a heading with nothing under it
                settings[section] = {}
        self._check_names(settings)
        return settings

    def _check_names(self, settings: Mapping[str, Any], prefix: str = "") -> None:
        known = [action.dest for action in self._actions if action.dest not in _NO_SETTINGS]
        for name, value in settings.items():
            if not prefix and name in (self.groups or {}):
                if not isinstance(value, dict):
                    raise UserError(f"`{name}`: expected settings by name, got {printable(repr(value), 80)}")
                self._check_names(value, f"{name}.")
            elif prefix + name.removesuffix("+") not in known:
                hint = _hint(f"--{prefix}{name}", [f"--{each}" for each in known]).replace("--", "")
                raise UserError(f"unknown setting {printable(prefix + name, 80)!r}; {hint}see {self.prog} --help")

    def add_settings(self, skip: Collection[str] = ()) -> None:
        """Add the settings of `madao train`. YAML files may also set those that have no flag."""
        self.add_class_arguments(TrainConfig, as_group=False, skip={*skip})
        self.finish()

    def finish(self) -> None:
        """Let switches stand without a value, hide settings that are no options, and remove what reads other files."""
        for name, group in (self.groups or {}).items():
            # jsonargparse takes a file, or the name of a class to import, for each section.
            action = self._option_string_actions.pop(f"--{name}", None)
            if action is not None:
                self._actions.remove(action)
                group._group_actions.remove(action)
        for action in self._actions:
            if getattr(action, "_typehint", None) in _SWITCHES:
                action.nargs, action.const = "?", True
            if action.dest in NOT_OPTIONS:
                action.help = argparse.SUPPRESS

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        """Raise `UserError` with a one-line message."""
        raise UserError(_explain(message, _options(self), self.prog)) from None


def function_parser(function: Callable[..., None], verb: str) -> Parser:
    """Return the parser of a function whose signature and docstring define a command line."""
    parser = Parser(prog=f"madao {verb}", description=(function.__doc__ or "").split("\n")[0])
    parser.add_function_arguments(function, as_group=False)
    parser.finish()
    return parser


def call(
    function: Callable[..., None],
    verb: str,
    arguments: list[str],
    plain: str | None = None,
    noun: str = "run",
    first: str | None = None,
) -> None:
    """Call a function whose signature and docstring define its command line.

    Args:
        function: The function to call.
        verb: The command.
        arguments: The command line after the verb.
        plain: Parameter whose name may be left out: `madao report RUN` instead of `madao report --runs RUN`.
        noun: Word for that parameter in messages.
        first: Parameter that takes the first of several such values: `madao predict RUN PATH`.
    """
    parser = function_parser(function, verb)
    if plain is not None:
        parameter = inspect.signature(function).parameters[plain]
        several, one = parameter.annotation == list[str], noun.upper()
        given = f"{one} [{one} …]" if several else one if parameter.default is parameter.empty else f"[{one}]"
        given = given if first is None else f"{first.upper()} {given}"
        parser.usage = f"madao {verb} {given} [OPTIONS]"
        arguments = name_positional(arguments, plain, noun, parser, several=several, first=first)
    function(**vars(parser.instantiate(parser.parse_args(arguments))))


# By hand, since argparse finds no positional arguments between options, and jsonargparse none that have a flag too.
def name_positional(
    arguments: list[str],
    name: str,
    noun: str,
    parser: jsonargparse.ArgumentParser,
    *,
    several: bool = False,
    first: str | None = None,
) -> list[str]:
    """Return a command line in which each value that stands alone follows the name of its option.

    Args:
        arguments: The command line after the verb.
        name: The option that takes the values.
        noun: Word for a value in messages.
        parser: The parser, which knows the options that may stand without a value.
        several: Whether the option takes a list.
        first: The option that takes the first of the values instead.

    Raises:
        UserError: There are too many values, or the option is given too.
    """
    switches = {
        option
        for action in parser._actions
        if action.nargs == "?" and getattr(action, "_typehint", None) != bool | str
        for option in action.option_strings
    }
    values: list[str] = []
    rest: list[str] = []
    taken = False
    for argument in arguments:
        option = argument.startswith("-")
        of_switch = bool(rest) and rest[-1] in switches and argument.lower() in _SWITCH_VALUES
        (rest if option or taken or of_switch else values).append(argument)
        taken = option and "=" not in argument and argument not in switches and argument not in ("-h", "--help")
    if first is not None and values and not _gives(rest, first):
        rest = [f"--{first}", values.pop(0), *rest]
    if len(values) > 1 and not several:
        raise UserError(f"expected one {noun}, got {len(values)}: {' '.join(values)}")
    if not values:
        return rest
    if _gives(rest, name):
        raise UserError(f"unexpected {values[0]!r}; give the {noun} with or without --{name}, not both")
    # Behind the others: a word of the command line overrides the settings of files.
    return [*rest, f"--{name}", json.dumps(values, ensure_ascii=False) if several else values[0]]


def _gives(arguments: list[str], name: str) -> bool:
    return any(argument == f"--{name}" or argument.startswith(f"--{name}=") for argument in arguments)


def without_dry_run(arguments: list[str]) -> tuple[list[str], bool]:
    """Return a command line without `--dry-run`, and whether it was there."""
    rest = [argument for argument in arguments if argument not in (DRY_RUN, "--dry_run")]
    return rest, len(rest) < len(arguments)


def current_options(arguments: list[str]) -> list[str]:
    """Return a command line with old flags replaced by current ones.

    Raises:
        UserError: A flag is a setting for experiments, which YAML files can set.
    """
    current = current_arguments(arguments)
    for given, argument, following in zip(arguments, current, [*current, ""][1:], strict=True):
        name, equals, value = argument.removeprefix("--").partition("=")
        if argument.startswith("--") and name in NOT_OPTIONS:
            section, _, key = name.rpartition(".")
            value = value if equals else "VALUE" if following.startswith("--") else following or "VALUE"
            yaml_text = f"{{{section}: {{{key}: {value}}}}}" if section else f"{{{key}: {value}}}"
            raise UserError(
                f"{given.partition('=')[0]} is a setting for experiments and has no flag; use --config '{yaml_text}', "
                "or the same in a YAML file"
            )
    return current


def _options(parser: jsonargparse.ArgumentParser) -> list[str]:
    shown = (action for action in parser._actions if action.help != argparse.SUPPRESS)
    return [option for action in shown for option in action.option_strings if option.startswith("--")]


# By regular expressions, since the exceptions of jsonargparse carry neither the key nor the value, only this text.
def _explain(message: str, options: list[str], program: str) -> str:
    unknown = re.search(r"unrecognized arguments: (\S+)", message)
    unknown_key = re.search(r"""(?:[Oo]ption|Key) ['"]([\w.-]+)['"]""", message)
    mismatch = re.search(r'Parser key "([\w.]+)":\s+Expected a (.+?)\. Got value: (.*)', message, re.DOTALL)
    if unknown is not None:
        name = unknown[1].split("=")[0]
        if not name.startswith("-"):
            return f"no option stands before {name!r}; see {program} --help"
        return f"unknown option {name!r}; {_hint(name, options)}see {program} --help"
    if mismatch is not None:
        return f"`{mismatch[1]}`: expected {_type_name(mismatch[2])}, got {_one_line(mismatch[3])!r}"
    if unknown_key is not None and "Expected" not in message:
        name = unknown_key[1]
        hint = _hint(f"--{name}", options).replace("--", "")
        return f"unknown setting {name!r}; {hint}see {program} --help"
    plain = re.sub(r'Parser key "([\w.]+)":', r"`\1`:", _one_line(message))
    return f"{plain}; see {program} --help"


def _hint(name: str, options: list[str]) -> str:
    # Compare the last part first: --lr means --optimizer.lr, and --learning_rate resembles no option.
    close = [option for option in options if option.split(".")[-1].lstrip("-") == name.split(".")[-1].lstrip("-")]
    close = close or difflib.get_close_matches(name, options, n=1)
    return f"did you mean {close[0]!r}? " if close else ""


def _type_name(text: str) -> str:
    choices = re.search(r"Literal\[(.+?)\]", text)
    if choices is not None:
        return f"one of {choices[1]}".replace("'", "")
    names = {"int": "a whole number", "float": "a number", "bool": "true or false", "str": "text"}
    plain = re.sub(r"<class '(\w+)'>", r"\1", _one_line(text))
    return re.sub(r"\b(int|float|bool|str)\b", lambda found: names[found[1]], plain)


def _one_line(text: str) -> str:
    return " ".join(text.split())
