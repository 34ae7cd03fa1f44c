"""Help in sections: common options first, the rest by name."""

import argparse
from collections.abc import Sequence

import jsonargparse

from madao.errors import UserError
from madao.text import nearest

_ALL = "all"


def requested_section(arguments: Sequence[str]) -> str | None:
    """Return the section that `--help SECTION` names: empty for `--help` alone, None without `--help`."""
    for place, argument in enumerate(arguments):
        if argument in ("-h", "--help"):
            following = next(iter(arguments[place + 1 :]), "")
            return "" if following.startswith("-") else following
    return None


def help_text(parser: jsonargparse.ArgumentParser, section: str, examples: Sequence[str]) -> str:
    """Return the help of a parser, or a part of it.

    Args:
        parser: A parser with a group of options for each section.
        section: Name of a group; empty for the options outside groups, with examples and a list of sections; `all` for
            every option.
        examples: Arguments of example commands.

    Raises:
        UserError: There is no such section.
    """
    titles = {name: str(group.title) for name, group in (parser.groups or {}).items()}
    if section == _ALL:
        return parser.format_help()
    if section and section not in titles:
        raise UserError(f"unknown section of help {nearest(section, [*titles, _ALL])}")
    for action in parser._actions:
        group = action.dest.partition(".")[0]
        if (group if group in titles else "") != section:
            action.help = argparse.SUPPRESS
    if section:
        parser.description = None
        return parser.format_help()
    width = max(map(len, titles))
    listed = [f"  {name:<{width}}  {title}" for name, title in {**titles, _ALL: "All options"}.items()]
    shown = [f"  {parser.prog} {example}" for example in examples]
    return "\n".join(
        [parser.format_help(), "examples:", *shown, "", f"more options: {parser.prog} --help SECTION", *listed, ""]
    )
