"""The records in an offline file of Weights & Biases, whose package only writes them."""

from collections.abc import Iterator
from pathlib import Path

_BLOCK, _FILE_HEADER, _HEADER = 2**15, 7, 7
_LAST_PARTS = (1, 4)
"""Kinds of a part that end a record: whole, and last."""


def records(file: Path) -> Iterator[bytes]:
    """Yield each record of a log in LevelDB's format: blocks of parts with checksum, length and kind before each."""
    content = file.read_bytes()
    place, whole = _FILE_HEADER, b""
    while place + _HEADER <= len(content):
        rest = _BLOCK - place % _BLOCK
        if rest < _HEADER:
            place += rest
            continue
        length, kind = int.from_bytes(content[place + 4 : place + 6], "little"), content[place + 6]
        if kind == 0:
            place += rest
            continue
        whole += content[place + _HEADER : place + _HEADER + length]
        place += _HEADER + length
        if kind in _LAST_PARTS:
            yield whole
            whole = b""
