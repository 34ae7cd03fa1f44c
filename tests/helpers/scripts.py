"""Benchmarks as tests find them."""

import importlib.util
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


def module(path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A script as a module."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks" / "speed"))
    monkeypatch.syspath_prepend(str(path.parent))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


def call(script: Any, monkeypatch: pytest.MonkeyPatch, *arguments: str) -> None:
    """Run the main function of a script that is a module."""
    monkeypatch.setattr(sys, "argv", [f"{script.__name__}.py", *map(str, arguments)])
    script.main()


def run(path: str, *arguments: str, cwd: Path | None = None) -> str:
    """Run a benchmark in a process of its own, and return its output."""
    command = [sys.executable, str(ROOT / "benchmarks" / path), *arguments]
    result = subprocess.run(command, capture_output=True, text=True, cwd=cwd)
    assert result.returncode == 0, result.stderr
    return result.stdout
