"""YAML as plain data: dictionaries with text as keys, lists, text and numbers.

Files of settings may come from strangers. A file cannot name a class or another file, and cannot be larger or deeper
than settings ever are, also when its aliases are written out.
"""

import re
from pathlib import Path
from typing import Any

import yaml

from madao.config.checks import is_writable
from madao.errors import UserError

_LARGEST = 250_000
"""Characters. The largest file of settings, of a comparison with many variants, has some ten thousand."""
_DEEPEST = 20
_MOST_PARTS = 10_000
"""Scalars, lists and mappings of a file, where each alias counts as all that it stands for."""
_LARGEST_INTEGER = 2**63


class PlainYamlError(yaml.YAMLError):
    """YAML that is more than plain data."""


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]  # chosen as the module is imported
    """A loader that takes 1e-3 for a number, as people do, and dates for text."""

    yaml_implicit_resolvers = {  # noqa: RUF012 -- a declaration of the parent
        first: [pair for pair in pairs if pair[0] not in ("tag:yaml.org,2002:timestamp", "tag:yaml.org,2002:float")]
        for first, pairs in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(
        r"""[-+]?(?: \d[\d_]*\.[\d_]*(?:e[-+]?\d+)? | \.\d[\d_]*(?:e[-+]?\d+)? | \d[\d_]*e[-+]?\d+ | \.inf | \.nan)$""",
        re.VERBOSE | re.IGNORECASE,
    ),
    list("-+.0123456789"),
)


def read_yaml(text: str) -> Any:
    """Return the content of YAML text as dictionaries, lists, text, numbers, booleans and None.

    Raises:
        yaml.YAMLError: The text is no YAML, or more than plain data.
    """
    check_plain_yaml(text)
    try:
        content = yaml.load(text, _Loader)
    except ValueError as error:  # such as an integer of ten thousand digits
        raise PlainYamlError(str(error)) from None
    _check_content(content)
    return content


def read_yaml_file(path: Path) -> Any:
    """Return the content of a YAML file, as `read_yaml` does.

    Raises:
        UserError: The file is no text, no YAML, or more than plain data.
        OSError: The file cannot be opened.
    """
    with path.open("rb") as file:
        content = file.read(4 * _LARGEST)
    try:
        return read_yaml(content.decode())
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UserError(f"{path} cannot be read: {' '.join(str(error).split())}") from None


def check_plain_yaml(text: str) -> None:
    """Raise `yaml.YAMLError` if YAML text is more than plain data, without building its content."""
    if len(text) > _LARGEST:
        raise PlainYamlError(f"expected settings of at most {_LARGEST:,} characters, got {len(text):,} or more")
    if not is_writable(text):
        raise PlainYamlError("expected text, got bytes that are not UTF-8")
    # For each open collection, and for each finished anchor: its parts and its levels.
    stack: list[tuple[str | None, int, int]] = [(None, 0, 0)]
    anchors: dict[str, tuple[int, int]] = {}
    for event in yaml.parse(text, _Loader):
        anchor = getattr(event, "anchor", None)
        if getattr(event, "tag", None) is not None:
            raise PlainYamlError(f"settings cannot have a type of their own, got the tag {event.tag!r}")
        if isinstance(event, yaml.CollectionStartEvent):
            stack.append((anchor, 1, 1))
            if len(stack) > _DEEPEST + 1:
                raise PlainYamlError(f"expected at most {_DEEPEST} levels of settings, got more")
            continue
        if isinstance(event, yaml.AliasEvent):
            if anchor not in anchors:
                raise PlainYamlError(f"settings cannot hold themselves, got the alias {anchor!r}")
            parts, levels = anchors[anchor]
        elif isinstance(event, yaml.CollectionEndEvent):
            anchor, parts, levels = stack.pop()
        elif isinstance(event, yaml.ScalarEvent):
            parts, levels = 1, 0
        else:
            continue
        if anchor is not None:
            anchors[anchor] = parts, levels
        outer, before, deepest = stack.pop()
        stack.append((outer, before + parts, max(deepest, levels + 1)))
        if before + parts > _MOST_PARTS or stack[-1][2] > _DEEPEST + 1:
            raise PlainYamlError(f"expected at most {_MOST_PARTS:,} settings in {_DEEPEST} levels, got more")


def _check_content(content: Any) -> None:
    if isinstance(content, int) and abs(content) > _LARGEST_INTEGER:
        raise PlainYamlError(f"expected integers of at most {_LARGEST_INTEGER}, got one of {content.bit_length()} bits")
    for part in content if isinstance(content, list) else ():
        _check_content(part)
    for key, value in content.items() if isinstance(content, dict) else ():
        _check_content(key)
        if not isinstance(key, str):
            raise PlainYamlError(f"expected text as the name of a setting, got {key!r}; put it in quotes")
        _check_content(value)
