"""Help in sections: what everybody needs first, the rest by name."""

from collections.abc import Sequence

from madao.errors import UserError
from madao.text import nearest

_ALL = "all"


def asked_for(arguments: Sequence[str]) -> str | None:
    """The section that `--help SECTION` names, empty where it names none; None where there is no `--help`."""
    for place, argument in enumerate(arguments):
        if argument in ("-h", "--help"):
            following = next(iter(arguments[place + 1 :]), "")
            return "" if following.startswith("-") else following
    return None


def section(whole: str, names: Sequence[str], name: str, command: str, examples: Sequence[str]) -> str:
    """A part of a long help.

    Args:
        whole: The help of a parser with a group of options for each of `names`: `--data.root` is of `data`.
        names: Of its sections.
        name: Which one; empty for what is in none of them, examples and a list of sections; `all` for the whole.
        command: What the help is of.
        examples: Of its use.
    """
    if name == _ALL:
        return whole
    if name and name not in names:
        raise UserError(f"unknown section of help {nearest(name, [*names, _ALL])}")
    parts = whole.rstrip().split("\n\n")
    own = {known: next(part for part in parts if f"\n  --{known}." in part) for known in names}
    if name:
        return f"{own[name]}\n"
    width = max(map(len, names))
    listed = [f"  {known:<{width}}  {part.splitlines()[0].rstrip(':')}" for known, part in own.items()]
    shown = ["examples:", *(f"  madao {command} {example}" for example in examples)]
    more = [f"more settings, by madao {command} --help SECTION:", *listed, f"  {_ALL:<{width}}  All of them"]
    rest = [part for part in parts if part not in own.values()]
    return "\n\n".join([*rest, "\n".join(shown), "\n".join(more)]) + "\n"
