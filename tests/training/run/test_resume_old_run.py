"""A run that the version before the names of today began is resumed to the same bits."""

import csv
import hashlib
import json
import shutil
from pathlib import Path

import pytest
import torch

from madao.cli import main
from madao.files import load_torch
from madao.policy import PolicySpec

OLD = Path(__file__).parents[2] / "fixtures" / "run_of_0_1"
ENDED = OLD / "ended"
PAPER = Path(__file__).parents[3] / "benchmarks" / "paper"


def rows(path: Path) -> list[list[str]]:
    """The rows of a table, with the status of the solver deflated as it is called today."""
    with path.open() as file:
        return [["direct" if cell == "truncated" else cell for cell in row] for row in csv.reader(file)]


def weights_sha256(run: Path) -> str:
    digest = hashlib.sha256()
    for name, weight in sorted(load_torch(run / "checkpoints" / "last.pt")["model"].items()):
        digest.update(name.encode() + weight.numpy().tobytes())
    return digest.hexdigest()


def test_a_run_of_the_version_before_is_resumed_to_the_same_bits(tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(OLD / "half", run)
    assert main(["train", "--out", str(run), "--resume"]) == 0

    result, expected = (json.loads((path / "result.json").read_text()) for path in (run, ENDED))
    assert result["policy"].keys() == expected["policy"].keys()
    made = json.loads((ENDED / "environment.json").read_text())
    here = {"torch": torch.__version__, "cpu_capability": torch.backends.cpu.get_cpu_capability()}
    if here != {key: made[key] for key in here}:  # other instructions round otherwise
        for name in ("metrics.csv", "outer.csv"):
            assert [row[:2] for row in rows(run / name)] == [row[:2] for row in rows(ENDED / name)]
        assert result["policy"] == pytest.approx(expected["policy"], abs=0.02)
        return
    for name in ("metrics.csv", "outer.csv"):
        assert rows(run / name) == rows(ENDED / name)
    assert (run / "policy.json").read_text() == (ENDED / "policy.json").read_text()
    assert {**result, "out": None} == {**expected, "out": None}
    assert weights_sha256(run) == made["weights_sha256"]


@pytest.mark.parametrize("path", sorted(PAPER.glob("*.json")), ids=lambda path: path.stem)
def test_policy_files_of_the_version_before_are_read_and_written_to_the_same_bytes(path: Path, tmp_path: Path) -> None:
    PolicySpec.load(path).save(tmp_path / "again.json")
    assert (tmp_path / "again.json").read_text() == path.read_text()
