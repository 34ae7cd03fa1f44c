"""The name under which a service knows a run, kept so that a resumed run continues its record."""

from collections.abc import Callable
from pathlib import Path

from madao.files import replacing


def remember(file: Path, create: Callable[[], str]) -> str:
    """Return the content of a file, which is created if it does not exist."""
    if file.is_file():
        return file.read_text()
    name = create()
    with replacing(file) as opened:
        opened.write(name.encode())
    return name
