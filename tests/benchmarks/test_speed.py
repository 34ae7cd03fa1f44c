"""Benchmarks of speed and memory run."""

import json
import sys
from pathlib import Path

import pytest

from tests.helpers.scripts import ROOT, module, run

SMALL = ["--images=64", "--batch=16", "--epochs=2", "--side=8", "--model=small-cnn", "--device=cpu"]


@pytest.mark.parametrize(
    ("name", "arguments", "said"),
    [
        ("augment", ["--quick", "--output=out.json"], "224 px"),
        pytest.param(
            *("input", ["--quick", "--workers=1", "--output=out.json"], "webdataset, decoded by workers"),
            marks=pytest.mark.slow,
        ),
        pytest.param("hypergrad", ["--quick"], "forward over reverse", marks=pytest.mark.slow),
        pytest.param(
            "overhead", [*SMALL, "--rows=base, eager", "--output=out.json"], "1.00 × time", marks=pytest.mark.slow
        ),
        pytest.param(
            "overhead",
            [*SMALL, "--task=moco", "--queue=64", "--precision=32", "--rows=base, eager|deflated, compiled"],
            "learned, influence, deflated, compiled",
            marks=pytest.mark.slow,
        ),
        pytest.param("cost", ["--quick", "--output=out.json"], "× standard training", marks=pytest.mark.slow),
    ],
)
def test_a_benchmark_runs_and_writes_what_it_is_asked_for(
    name: str, arguments: list[str], said: str, tmp_path: Path
) -> None:
    output = run(f"speed/{name}.py", *arguments, cwd=tmp_path)
    assert said in output
    assert '"error"' not in output
    assert [path.name for path in tmp_path.iterdir()] == (["out.json"] if "--output=out.json" in arguments else [])
    if name == "input":
        assert [part["workers"] for part in json.loads((tmp_path / "out.json").read_text())["epochs"]] == [1]
    if name == "cost":
        assert "error" not in (tmp_path / "out.json").read_text()
        run("speed/plot_cost.py", "--results=out.json", "--output=out.png", cwd=tmp_path)
        assert (tmp_path / "out.png").exists()


@pytest.mark.slow
def test_the_accuracy_benchmark_runs(tmp_path: Path) -> None:
    small = ["--model=small-cnn", "--epochs=1", "--batches=2", "--batch=64", "--output=out.json"]
    run("speed/accuracy.py", *small, cwd=tmp_path)
    cases = json.loads((tmp_path / "out.json").read_text())["cases"]
    assert len(cases) == 4
    assert all(0.99 < case["all"]["median"] <= 1 + 1e-9 for case in cases.values())


def test_the_communication_benchmark_fits_and_foretells(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    communication = module(ROOT / "benchmarks" / "speed" / "communication.py", monkeypatch)
    network, sizes = communication.Network(2e9, 30e-6), [400, 40_000, 4_000_000]
    found = communication.fitted(sizes, [network.seconds(size, 3) for size in sizes], 3)
    assert found.bandwidth == pytest.approx(2e9, rel=1e-3)
    assert found.latency == pytest.approx(30e-6, rel=1e-3)
    assert network.seconds(8, 1) == 0
    row = communication.share(1000, 0.1, network, 2, 2, 30)
    assert row["milliseconds"] == pytest.approx(1000 * 2 * 2 * (4000 / 2 / 2e9 + 30e-6))
    assert row["of_training"] == pytest.approx(row["milliseconds"] / 3000)
    run("speed/communication.py", "--bandwidth=40", f"--output={tmp_path / 'out.json'}")
    models = json.loads((tmp_path / "out.json").read_text())["models"]
    assert models["resnet50, deflated"].keys() == {"2", "8", "16", "64"}


def test_results_name_no_folder_of_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    measure = module(ROOT / "benchmarks" / "speed" / "measure.py", monkeypatch)
    for words in (["--root", "/a/b", "--output", "/c/d.json"], ["--output=/c/d.json", "--root=/a/b"]):
        monkeypatch.setattr(sys, "argv", ["benchmarks/worth.py", *words, "--jobs", "2"])
        said = measure.environment()["command"]
        assert said.replace("=", " ") == "python benchmarks/worth.py --root FOLDER --jobs 2"
