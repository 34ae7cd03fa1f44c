"""Every small model of torchvision and timm takes an outer step."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.scripts import ROOT, module

SCRIPT = ROOT / "benchmarks" / "architectures.py"
RESULTS: dict[str, Any] = json.loads((ROOT / "benchmarks" / "results" / "architectures.json").read_text())


@pytest.fixture
def architectures(monkeypatch: pytest.MonkeyPatch) -> Any:
    return module(SCRIPT, monkeypatch)


def assert_takes_outer_steps(row: dict[str, Any]) -> None:
    kinds = {"ForwardOverReverse", "DoubleBackward", "FiniteDifference"}
    assert {row["default"], row["paper"]} <= kinds, row


@pytest.mark.slow
def test_small_models_of_every_family_take_outer_steps(architectures: Any) -> None:
    assert len(architectures.MODELS) >= 100
    for name in architectures.MODELS:
        assert_takes_outer_steps(architectures.outcome(name))


def test_a_model_with_hardsigmoid_takes_an_outer_step(architectures: Any) -> None:
    row = architectures.outcome("mobilenet_v3_small")
    assert (row["default"], row["paper"]) == ("ForwardOverReverse", "ForwardOverReverse")


def test_the_page_shows_the_results(architectures: Any) -> None:
    assert {row["model"] for row in RESULTS["models"]} <= {*architectures.MODELS}
    for row in RESULTS["models"]:
        assert_takes_outer_steps(row)
    page = Path(ROOT / "docs" / "models.md").read_text()
    assert architectures.table(RESULTS["models"]) in page
