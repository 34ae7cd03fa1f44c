"""Commands that are refused."""

import pytest

from madao.cli import main


def fails(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """The one line of an error."""
    assert main(arguments) == 2
    printed = capsys.readouterr()
    lines = printed.err.strip().splitlines()
    assert len(lines) == 1, printed.err
    assert "Traceback" not in printed.err
    return lines[0]
