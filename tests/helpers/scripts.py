"""Benchmarks as tests find them."""

import importlib.util
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
