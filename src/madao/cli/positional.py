"""Values that stand alone on a command line, before, between or after the options: `madao train photos/`."""

import json

import jsonargparse

from madao.errors import UserError

_SWITCH_VALUES = ("true", "false", "yes", "no", "on", "off", "null", "~")


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
