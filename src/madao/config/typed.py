"""Settings from a file, checked against the dataclasses that declare them: names and types."""

import dataclasses
import types
import typing
from collections.abc import Iterator, Mapping
from typing import Any

from madao.text import nearest, printable

_WORDS = {int: "a whole number", float: "a number", bool: "true or false", str: "text", types.NoneType: "null"}


def names_of(kind: type[Any]) -> dict[str, Any]:
    """Return the settings of a dataclass by name: those of a section as a dictionary, the type of others."""
    hints = typing.get_type_hints(kind)
    return {
        field.name: names_of(hints[field.name]) if dataclasses.is_dataclass(hints[field.name]) else hints[field.name]
        for field in dataclasses.fields(kind)
    }


def problems(settings: Any, known: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """Yield a message for each setting that is unknown or of another type.

    Args:
        settings: The settings, from a file.
        known: The settings that may be there, from `names_of`.
        prefix: The section, with a dot behind it.
    """
    if not isinstance(settings, Mapping):
        yield f"`{prefix[:-1]}`: expected settings by name, got {printable(repr(settings), 80)}"
        return
    for key, value in settings.items():
        name, expected = f"{prefix}{key}", known.get(key)
        if isinstance(expected, Mapping):
            yield from problems(value, expected, f"{name}.")
        elif expected is None:
            yield f"unknown setting {nearest(name, [prefix + each for each in known])}"
        elif not is_of(value, expected):
            yield f"`{name}`: expected {words(expected)}, got {printable(repr(value), 80)}"


def checked(
    settings: Mapping[str, Any], known: Mapping[str, Any], prefix: str = ""
) -> tuple[dict[str, Any], list[str]]:
    """Return the settings without those of another type, and a message for each of these. Unknown ones are kept."""
    kept: dict[str, Any] = {}
    messages: list[str] = []
    for key, value in settings.items():
        expected = known.get(key)
        if isinstance(expected, Mapping) and isinstance(value, Mapping):
            kept[key], inner = checked(value, expected, f"{prefix}{key}.")
            messages += inner
        elif expected is None or not (found := [*problems({key: value}, known, prefix)]):
            kept[key] = value
        else:
            messages += found
    return kept, messages


def is_of(value: Any, expected: Any) -> bool:
    """Return whether a value has a type; whole numbers are numbers, and booleans are not."""
    origin, inner = typing.get_origin(expected), typing.get_args(expected)
    if origin is typing.Literal:
        return isinstance(value, str) and value in inner
    if origin in (types.UnionType, typing.Union):
        return any(is_of(value, each) for each in inner)
    if origin is list:
        return isinstance(value, list) and all(is_of(each, inner[0]) for each in value)
    if origin is dict:
        return isinstance(value, Mapping) and all(
            is_of(key, inner[0]) and is_of(each, inner[1]) for key, each in value.items()
        )
    if expected in (int, float):
        return isinstance(value, int | expected) and not isinstance(value, bool)
    return isinstance(value, expected)


def words(expected: Any) -> str:
    """Return a type in words."""
    origin, inner = typing.get_origin(expected), typing.get_args(expected)
    if origin is typing.Literal:
        return f"one of {', '.join(map(str, inner))}"
    if origin in (types.UnionType, typing.Union):
        return " or ".join(map(words, inner))
    if origin is list:
        return f"a list, each {words(inner[0])}"
    if origin is dict:
        return f"names, each with {words(inner[1])}"
    return _WORDS[expected]
