"""Damage to files: at the level of bytes, and at that of values in JSON and YAML."""

import copy
import json
import random
from typing import Any

VALUES: tuple[Any, ...] = (
    None,
    True,
    False,
    0,
    -1,
    1e308,
    -1e308,
    1e-320,
    float("nan"),
    float("inf"),
    2**31,
    2**63,
    10**400,
    "",
    "x",
    "\ud800",
    "\x1b[2J\x1b]0;title\x07",
    "a\nb",
    "../../etc/passwd",
    "/dev/zero",
    "<script>alert(1)</script>",
    "[bold red]",
    "$x$ \\frac",
    "null",
    "~",
    "y" * 100_000,
    [],
    {},
    [[]],
    [None],
    [1] * 10_000,
    {"class_path": "os.system", "init_args": {}},
    {"x": {"x": {"x": {}}}},
)
"""Values that stand where others are expected."""

_TOKENS = (
    *(b"\0", b"\xff", b'"', b"{", b"[", b"]" * 50, b"[" * 2_000, b",", b"\n", b"1e999", b"NaN", b"&a", b"*a"),
    *(b"!!python/name:os.system", b"<<: ", b": ", b"- ", b"\xed\xa0\x80", b"-", b"9" * 5_000),
)


def damaged(content: bytes, source: random.Random) -> bytes:
    """The content with a few bytes flipped, removed, repeated or inserted."""
    found = bytearray(content)
    for _ in range(source.choice((1, 1, 2, 4, 16))):
        place = source.randrange(len(found) + 1)
        length = source.choice((1, 2, 8, 64, 512))
        match source.randrange(6):
            case 0 if found:
                found[place % len(found)] ^= 1 << source.randrange(8)
            case 1:
                del found[place : place + length]
            case 2:
                found[place:place] = found[place : place + length]
            case 3:
                found[place:place] = source.choice(_TOKENS)
            case 4 if source.random() < 0.3:
                del found[place:]
            case 5:
                found[place : place + 1] = source.randbytes(1)
    return bytes(found)


def replaced(content: Any, source: random.Random) -> Any:
    """A JSON value in which one to three parts are other values, missing, added or moved."""
    for _ in range(source.choice((1, 1, 1, 2, 3))):
        places = [*_places(content)]
        if not places:
            return copy.deepcopy(source.choice(VALUES))
        holder, key = source.choice(places)
        match source.randrange(5):
            case 0:
                del holder[key]
            case 1 if isinstance(holder, dict):
                holder[str(source.choice(VALUES))[:1000]] = holder[key]
            case 2 if isinstance(holder, list):
                holder.extend([holder[key]] * source.choice((1, 40)))
            case 3:
                other, place = source.choice(places)
                holder[key] = json.loads(json.dumps(other[place])) if place in other or isinstance(place, int) else None
            case _:
                holder[key] = copy.deepcopy(source.choice(VALUES))  # a later mutation may change it
    return content


def _places(content: Any) -> list[tuple[Any, Any]]:
    """Every part of a JSON value: what holds it, and its key there."""
    if not isinstance(content, dict | list):
        return []
    keys = [*content] if isinstance(content, dict) else [*range(len(content))]
    found = [(content, key) for key in keys[:200]]
    for key in keys[:200]:
        found += _places(content[key])
    return found
