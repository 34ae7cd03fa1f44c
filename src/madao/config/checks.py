"""Checks of the range of a setting."""

import dataclasses
import math
from typing import Any

from madao.errors import UserError
from madao.text import printable

_LARGEST = 3.4e38
"""What a float32 holds; models, optimizers and policies compute in float32."""
_LARGEST_INTEGER = 2**62
_UNBOUNDED = ("data.cache_gib", "checkpoint_minutes", "optimizer.clip", "outer.clip")
"""Settings for which infinity means no limit."""


def at_least(name: str, value: float | None, least: float) -> None:
    """Raise `UserError` if a setting is below its least value. None passes."""
    # Negated, so that NaN is refused as well.
    if value is not None and not value >= least:
        raise UserError(f"`{name}` must be at least {least}, got {value}")


def fraction(name: str, value: float) -> None:
    """Raise `UserError` unless 0 ≤ value < 1."""
    if not 0 <= value < 1:
        raise UserError(f"`{name}` must be at least 0 and below 1, got {value}")


def check_values(settings: Any, prefix: str = "") -> None:
    """Raise `UserError` if a setting is a number too large to compute with, or a text that no file can hold.

    Args:
        settings: The dataclass.
        prefix: The section, with a dot behind it.
    """
    for field in dataclasses.fields(settings):
        name, value = prefix + field.name, getattr(settings, field.name)
        if dataclasses.is_dataclass(value):
            check_values(value, f"{name}.")
            continue
        if isinstance(value, str) and not is_writable(value):
            raise UserError(f"`{name}` must be UTF-8 text, got {value!r}; rename the file or folder")
        for number in value if isinstance(value, list) else value.values() if isinstance(value, dict) else (value,):
            if isinstance(number, float) and math.isinf(number) and name in _UNBOUNDED:
                continue
            largest = _LARGEST if isinstance(number, float) else _LARGEST_INTEGER
            if isinstance(number, int | float) and abs(number) > largest:
                raise UserError(f"`{name}` must be at most {largest:.2g}, got {printable(number, 40)}")


def is_writable(text: str) -> bool:
    """Return whether a text has no lone surrogates, which stand for bytes of a path that are not UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
