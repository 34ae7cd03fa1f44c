"""Words for messages: counts, the nearest known name, and text from files that a terminal may show."""

import difflib
import unicodedata
from collections.abc import Iterable, Sequence

METHOD_LABELS = {"base": "base augmentation", "uniform": "uniform policy", "learned": "learned policy"}
"""Names of methods in tables for people."""

_NAME = 80
"""The largest number of characters of a name that a message shows."""

_COMMANDS = {"Cc", "Cf", "Cs", "Zl", "Zp"}
"""Unicode categories that terminals obey instead of showing them, or that cannot be encoded."""


def counted(number: int, thing: str) -> str:
    """`1 step`, `1,200 steps`."""
    return f"{number:,} {thing}{'s' * (number != 1)}"


def alternatives(remedies: Sequence[str]) -> str:
    """`a`, `a or b`, `a, b or c`."""
    return " or ".join([", ".join(remedies[:-1]), remedies[-1]] if len(remedies) > 1 else remedies)


def printable(text: object, limit: int = 2_000) -> str:
    r"""Return text from a file or a command line as a terminal may show it, in one line.

    Escape sequences, line breaks, changes of direction and lone surrogates are written as Python writes them.

    Args:
        text: The text, or an object to show as `str` does.
        limit: The largest number of characters; longer texts end in `…`.

    >>> printable("cat\x1b[2J\nowl")
    'cat\\x1b[2J\\nowl'
    """
    shown = str(text)
    if len(shown) > limit:
        shown = f"{shown[: limit - 1]}…"
    if shown.isprintable():
        return shown
    return "".join(repr(each)[1:-1] if unicodedata.category(each) in _COMMANDS else each for each in shown)


def nearest(name: str, known: Iterable[str]) -> str:
    """`name` with the nearest known names behind it, for the end of an error message."""
    known = [printable(each, _NAME) for each in known]
    name = printable(name, _NAME)
    by_lower = {candidate.lower(): candidate for candidate in known}
    close = difflib.get_close_matches(name.lower(), by_lower, n=1)
    close = close or [candidate for candidate in by_lower if name and candidate.startswith(name.lower())]
    hint = f"did you mean {by_lower[close[0]]!r}? " if close else ""
    listed = f"known are {', '.join(known)}" if len(known) <= 24 or not close else f"{len(known)} are known"
    return f"{name!r}; {hint}{listed}"
