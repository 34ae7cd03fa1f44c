"""Words for messages: counts, and the nearest known name."""

import difflib
from collections.abc import Iterable

METHOD_LABELS = {"base": "base augmentation", "uniform": "uniform policy", "learned": "learned policy"}
"""Names of methods in tables for people."""


def counted(number: int, thing: str) -> str:
    """`1 step`, `1,200 steps`."""
    return f"{number:,} {thing}{'s' * (number != 1)}"


def nearest(name: str, known: Iterable[str]) -> str:
    """`name` with the nearest known names behind it, for the end of an error message."""
    known = list(known)
    by_lower = {candidate.lower(): candidate for candidate in known}
    close = difflib.get_close_matches(name.lower(), by_lower, n=1)
    close = close or [candidate for candidate in by_lower if name and candidate.startswith(name.lower())]
    hint = f"did you mean {by_lower[close[0]]!r}? " if close else ""
    listed = f"known are {', '.join(known)}" if len(known) <= 24 or not close else f"{len(known)} are known"
    return f"{name!r}; {hint}{listed}"
