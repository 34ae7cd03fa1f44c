"""The code of docs/integrations.md and of docstrings runs. The page has `py` blocks, since libraries warn here."""

import doctest
import importlib
import re
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import madao

PAGE = Path(__file__).parents[2] / "docs" / "integrations.md"


@pytest.mark.filterwarnings("ignore:.*does not have many workers.*")
@pytest.mark.filterwarnings("ignore:.*treespec, LeafSpec.*")
def test_blocks_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In order, as a reader would paste them."""
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    blocks = re.findall(r"^```py\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    assert len(blocks) == 3
    for code in blocks:
        exec(compile(code, "integrations.md", "exec"), names)


MODULES = ["outer.budget", "outer.policy_optimizer", "outer.compute_options", "outer.policy_adam", "distributed.group"]
MODULES += ["integrations.loop_adapter", "integrations.lightning"]


@pytest.mark.parametrize("name", MODULES)
def test_docstring_examples_run(name: str) -> None:
    names = {"madao": madao, "torch": torch, "nn": nn, "F": F, "pl": pytest.importorskip("lightning.pytorch")}
    found = doctest.testmod(importlib.import_module(f"madao.{name}"), extraglobs=names)
    assert found.attempted > 0
    assert found.failed == 0
