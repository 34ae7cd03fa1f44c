"""Benchmarks of speed and memory run."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers.scripts import ROOT, module


def test_the_benchmark_runs(tmp_path: Path) -> None:
    script = ROOT / "benchmarks" / "speed" / "augment.py"
    arguments = [sys.executable, str(script), "--quick", f"--output={tmp_path / 'out.json'}"]
    result = subprocess.run(arguments, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert "224 px" in result.stdout
    assert (tmp_path / "out.json").exists()


@pytest.mark.slow
def test_the_input_benchmark_runs(tmp_path: Path) -> None:
    script = ROOT / "benchmarks" / "speed" / "input.py"
    arguments = [sys.executable, str(script), "--quick", "--workers=1", f"--output={tmp_path / 'out.json'}"]
    result = subprocess.run(arguments, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert "webdataset, decoded by workers" in result.stdout
    found = json.loads((tmp_path / "out.json").read_text())
    assert [part["workers"] for part in found["epochs"]] == [1]


@pytest.mark.slow
def test_the_hypergradient_benchmark_runs(tmp_path: Path) -> None:
    script = ROOT / "benchmarks" / "speed" / "hypergrad.py"
    result = subprocess.run([sys.executable, str(script), "--quick"], capture_output=True, text=True, cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert "forward over reverse" in result.stdout
    assert not [*tmp_path.iterdir()]


@pytest.mark.slow
def test_the_overhead_benchmark_runs(tmp_path: Path) -> None:
    script = ROOT / "benchmarks" / "speed" / "overhead.py"
    small = ["--images=64", "--batch=16", "--epochs=2", "--side=8", "--model=small-cnn", "--device=cpu"]
    arguments = [sys.executable, str(script), *small, "--rows=base, eager", f"--output={tmp_path / 'out.json'}"]
    result = subprocess.run(arguments, capture_output=True, text=True, cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert "1.00 × time" in result.stdout, result.stdout
    assert [path.name for path in tmp_path.iterdir()] == ["out.json"]
    chosen = ["--task=moco", "--queue=64", "--precision=32", "--rows=base, eager|deflated, compiled"]
    result = subprocess.run([sys.executable, str(script), *small, *chosen], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert "learned, influence, deflated, compiled" in result.stdout
    assert '"error"' not in result.stdout


@pytest.mark.slow
def test_the_cost_benchmark_runs_and_is_drawn(tmp_path: Path) -> None:
    speed = ROOT / "benchmarks" / "speed"
    results, figure = tmp_path / "out.json", tmp_path / "out.png"
    measure = [sys.executable, str(speed / "cost.py"), "--quick", f"--output={results}"]
    measured = subprocess.run(measure, capture_output=True, text=True, cwd=tmp_path)
    assert measured.returncode == 0, measured.stderr
    assert "× standard training" in measured.stdout
    assert "error" not in results.read_text()
    draw = [sys.executable, str(speed / "plot_cost.py"), f"--results={results}", f"--output={figure}"]
    drawn = subprocess.run(draw, capture_output=True, text=True, cwd=tmp_path)
    assert drawn.returncode == 0, drawn.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out.json", "out.png"]


@pytest.mark.slow
def test_the_accuracy_benchmark_runs(tmp_path: Path) -> None:
    script = ROOT / "benchmarks" / "speed" / "accuracy.py"
    small = ["--model=small-cnn", "--epochs=1", "--batches=2", "--batch=64", f"--output={tmp_path / 'out.json'}"]
    result = subprocess.run([sys.executable, str(script), *small], capture_output=True, text=True, cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    cases = json.loads((tmp_path / "out.json").read_text())["cases"]
    assert len(cases) == 4
    for case in cases.values():
        assert 0.99 < case["all"]["median"] <= 1 + 1e-9


def test_the_communication_benchmark_fits_and_foretells(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = ROOT / "benchmarks" / "speed" / "communication.py"
    communication = module(script, monkeypatch)
    network, sizes = communication.Network(2e9, 30e-6), [400, 40_000, 4_000_000]
    found = communication.fitted(sizes, [network.seconds(size, 3) for size in sizes], 3)
    assert found.bandwidth == pytest.approx(2e9, rel=1e-3)
    assert found.latency == pytest.approx(30e-6, rel=1e-3)
    assert network.seconds(8, 1) == 0
    row = communication.share(1000, 0.1, network, 2, 2, 30)
    assert row["milliseconds"] == pytest.approx(1000 * 2 * 2 * (4000 / 2 / 2e9 + 30e-6))
    assert row["of_training"] == pytest.approx(row["milliseconds"] / 3000)
    arguments = [sys.executable, str(script), "--bandwidth=40", f"--output={tmp_path / 'out.json'}"]
    result = subprocess.run(arguments, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert set(json.loads((tmp_path / "out.json").read_text())["models"]["resnet50, deflated"]) == {
        "2",
        "8",
        "16",
        "64",
    }


def test_results_name_no_folder_of_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    measure = module(ROOT / "benchmarks" / "speed" / "measure.py", monkeypatch)
    for words in (["--root", "/a/b", "--output", "/c/d.json"], ["--output=/c/d.json", "--root=/a/b"]):
        monkeypatch.setattr(sys, "argv", ["benchmarks/worth.py", *words, "--jobs", "2"])
        said = measure.environment()["command"]
        assert said.replace("=", " ") == "python benchmarks/worth.py --root FOLDER --jobs 2"
