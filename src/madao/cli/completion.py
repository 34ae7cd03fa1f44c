"""`madao completion`: print a script with which a shell completes commands, options and choices."""

import argparse
import importlib
import types
from collections.abc import Iterator
from typing import Any, Literal, Union, get_args, get_origin

from madao.cli import VERBS
from madao.cli.compare_arguments import own_parser
from madao.cli.parser import Parser, call, function_parser
from madao.cli.recipes import recipe_names
from madao.cli.train import train_parser

Options = dict[str, list[str] | None]
"""The options of a command, each with its choices; None for one that takes no value, no choices for any value."""

_SHELLS = ("bash", "zsh", "fish")


def command(arguments: list[str]) -> None:
    """Run `madao completion`."""
    call(completion, "completion", arguments, plain="shell", noun="shell")


def completion(shell: Literal["bash", "zsh", "fish"]) -> None:
    """Print a script that completes commands; in bash, use it by: source <(madao completion bash).

    Args:
        shell: The shell: bash, zsh or fish. The word --shell may be left out.
    """
    options = {verb: options_of(parser_of(verb)) for verb in VERBS}
    if shell == "fish":
        print("\n".join(_fish(options)))
        return
    if shell == "zsh":
        print("autoload -U +X compinit && compinit\nautoload -U +X bashcompinit && bashcompinit")
    print("\n".join(_bash(options)))


def parser_of(verb: str) -> Parser:
    """Return the parser of a command."""
    if verb == "train":
        return train_parser()
    if verb == "compare":
        parser = own_parser()
        parser.add_settings(skip={"out"})
        return parser
    return function_parser(getattr(importlib.import_module(f"madao.cli.{verb}"), verb), verb)


def options_of(parser: Parser) -> Options:
    """Return the options that the help of a parser shows, with their choices."""
    return {
        option: None if action.nargs == 0 else _choices(option, getattr(action, "_typehint", None))
        for action in parser._actions
        if action.help != argparse.SUPPRESS
        for option in action.option_strings
        if option.startswith("--") and not option.endswith("+")
    }


def _choices(option: str, kind: Any) -> list[str]:
    """Return the values of an option, as far as its type lists them."""
    if option == "--recipe":
        return recipe_names()
    if get_origin(kind) is Literal:
        return [str(value) for value in get_args(kind)]
    if get_origin(kind) in (Union, types.UnionType):
        return [choice for each in get_args(kind) for choice in _choices("", each)]
    return ["true", "false"] if kind is bool else []


def _words(verb: str) -> list[str]:
    """Return the values that a command takes without an option, as far as they are known."""
    return {"completion": [*_SHELLS], "recipes": recipe_names()}.get(verb, [])


def _bash(options: dict[str, Options]) -> Iterator[str]:
    verbs = " ".join([*VERBS, "help", "--help", "--version"])
    yield "_madao() {"
    yield '    local current="${COMP_WORDS[COMP_CWORD]}" previous="${COMP_WORDS[COMP_CWORD-1]}"'
    yield '    local verb="${COMP_WORDS[1]}" offered'
    yield "    COMPREPLY=()"
    yield '    if [ "$current" = "=" ]; then current=""'
    yield '    elif [ "$previous" = "=" ]; then previous="${COMP_WORDS[COMP_CWORD-2]}"; fi'
    yield f'    if [ "$COMP_CWORD" -eq 1 ]; then offered="{verbs}"'
    yield '    else case "$verb $previous" in'
    for verb, known in options.items():
        for option, choices in known.items():
            if choices:
                yield f'        "{verb} {option}") offered="{" ".join(choices)}" ;;'
        valued = [f'"{verb} {option}"' for option, choices in known.items() if choices == []]
        if valued:
            yield f"        {'|'.join(valued)}) return ;;"
        yield f'        "{verb} "*) offered="{" ".join(_words(verb))}"'
        yield f'            case "$current" in -*) offered="{" ".join(known)}" ;; esac ;;'
    yield f'        "help "*) offered="{" ".join(VERBS)}" ;;'
    yield "    esac; fi"
    yield '    COMPREPLY=($(compgen -W "$offered" -- "$current"))'
    yield "}"
    yield "complete -o default -F _madao madao"


def _fish(options: dict[str, Options]) -> Iterator[str]:
    for verb, text in VERBS.items():
        quoted = text.replace("'", r"\'")
        yield f"complete -c madao -n __fish_use_subcommand -a {verb} -d '{quoted}'"
    for verb, known in options.items():
        place = f"complete -c madao -n '__fish_seen_subcommand_from {verb}'"
        if words := _words(verb):
            yield f"{place} -a '{' '.join(words)}'"
        for option, choices in known.items():
            value = "" if choices is None else f" -x -a '{' '.join(choices)}'" if choices else " -r"
            yield f"{place} -l {option.removeprefix('--')}{value}"
