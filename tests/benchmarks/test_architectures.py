"""Every small model of torchvision and timm takes an outer step."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.scripts import ROOT, module

SCRIPT = ROOT / "benchmarks" / "architectures.py"
RESULTS: dict[str, Any] = json.loads((ROOT / "benchmarks" / "results" / "architectures.json").read_text())
MODELS: list[str] = [row["model"] for row in RESULTS["models"]]


@pytest.fixture
def architectures(monkeypatch: pytest.MonkeyPatch) -> Any:
    return module(SCRIPT, monkeypatch)


def assert_takes_outer_steps(row: dict[str, Any]) -> None:
    kinds = {"ForwardOverReverse", "DoubleBackward", "FiniteDifference"}
    assert {row["default"], row["paper"]} <= kinds, row


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_a_small_model_takes_an_outer_step(name: str, architectures: Any) -> None:
    assert_takes_outer_steps(architectures.outcome(name))


def test_a_model_with_hardsigmoid_takes_an_outer_step(architectures: Any) -> None:
    row = architectures.outcome("mobilenet_v3_small")
    assert (row["default"], row["paper"]) == ("ForwardOverReverse", "ForwardOverReverse")


def test_the_results_cover_the_models_of_the_script_and_the_page_shows_them(architectures: Any) -> None:
    assert sorted(MODELS) == sorted(architectures.MODELS)
    assert len(MODELS) >= 100
    for row in RESULTS["models"]:
        assert_takes_outer_steps(row)
    page = Path(ROOT / "docs" / "models.md").read_text()
    assert architectures.table(RESULTS["models"]) in page
