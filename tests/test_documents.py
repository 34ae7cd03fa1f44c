"""What the documents tell people to do works."""

import importlib.util
import json
import re
import shlex
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import madao
from madao.cli import main
from madao.cli.plan import read_plan
from madao.data import DATASETS, Dataset, Pixels, Source
from madao.ops import OPERATIONS
from madao.report.record import record
from madao.report.table import cell_path, read_cells
from tests.report.runs import write_run

ROOT = Path(__file__).parents[1]
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def fences(document: Path) -> list[tuple[str, str]]:
    """The (language, text) of every fenced block."""
    found = []
    language, inside = "", None
    for line in document.read_text().splitlines(keepends=True):
        if line.startswith("```"):
            if inside is None:
                language, inside = line[3:].strip(), ""
            else:
                found.append((language, inside))
                inside = None
        elif inside is not None:
            inside += line
    return found


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_python_blocks_run(document: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The blocks of a document in order, as a reader would paste them."""
    monkeypatch.chdir(tmp_path)
    known = dict(OPERATIONS)
    names: dict[str, object] = {}
    try:
        for language, code in fences(document):
            if language == "python":
                exec(compile(code, document.name, "exec"), names)
    finally:
        for name in OPERATIONS.keys() - known.keys():
            del OPERATIONS[name]


def commands(document: Path) -> list[str]:
    texts = [text for language, text in fences(document) if language == ""]
    lines = [line.split("#")[0].strip() for text in texts for line in text.splitlines()]
    return [line for line in lines if line.startswith("madao ")]


# The same commands on less: what comes last on a command line counts.
QUICK = {
    "train": ["--epochs=1", "--batch_size=8", "--device=cpu", "--devices=1", "--tensorboard=false", "--data.workers=0"],
    "demo": ["--epochs=1"],
    "compare": ["--epochs=1", "--batch_size=128", "--device=cpu", "--tensorboard=false", "--seeds=1"],
}


def fake_cifar10(source: Source) -> Dataset:
    images = Pixels(torch.zeros(40, 3, 32, 32, dtype=torch.uint8), torch.arange(40) % 10)
    return Dataset("cifar10", tuple("0123456789"), images, None, images.subset(torch.arange(10)), flip=True)


@pytest.mark.parametrize("document", [d for d in DOCUMENTS if commands(d)], ids=lambda path: path.name)
def test_commands_run(document: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The commands of a document in order, in one folder, as a reader would paste them."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(DATASETS, "cifar10", fake_cifar10)  # what cannot be downloaded here
    for label, colour in enumerate(("red", "blue")):
        (tmp_path / "photos" / colour).mkdir(parents=True)
        for number in range(6):
            Image.new("RGB", (50, 40 + label), colour).save(f"photos/{colour}/{number}.png")
    with tarfile.open(tmp_path / "shards-train.tar", "w") as shard:
        for number, path in enumerate(sorted((tmp_path / "photos").rglob("*.png"))):
            (tmp_path / "label").write_text(str(number % 2))
            shard.add(path, f"{number}.png")
            shard.add(tmp_path / "label", f"{number}.cls")
    (tmp_path / "shards").mkdir()
    (tmp_path / "shards-train.tar").rename(tmp_path / "shards" / "train-000.tar")
    madao.Policy().spec().save("policy.json")
    if "runs/digits-small-cnn-madao-0" in document.read_text():
        assert main(["train", *QUICK["train"]]) == 0
    for command in commands(document):
        verb, *arguments = shlex.split(command)[1:]
        quick = [] if "--resume" in arguments else QUICK.get(verb, [])
        if verb == "train" and not {"photos/", "shards/"}.isdisjoint(arguments):
            quick = [*quick, "--data.size", "32"]
        assert main([verb, *arguments, *quick]) == 0, command


def test_the_reader_of_documents_finds_what_is_there() -> None:
    assert "madao preview --policy policy.json --images photos/" in commands(ROOT / "README.md")
    assert sum(language == "python" for language, _ in fences(ROOT / "README.md")) >= 2


def test_the_readme_shows_the_two_commands() -> None:
    text = (ROOT / "README.md").read_text()
    first_screen = "\n".join(text.splitlines()[:40])
    assert "make demo" in first_screen
    assert "make test" in first_screen


@pytest.mark.parametrize(
    "document", [*DOCUMENTS, ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md"], ids=lambda p: p.name
)
def test_links_lead_somewhere(document: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", document.read_text()):
        assert target.startswith("http") or (document.parent / target).exists(), target


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
    arguments = [sys.executable, str(script), *small, "--rows=standard, eager", f"--output={tmp_path / 'out.json'}"]
    result = subprocess.run(arguments, capture_output=True, text=True, cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert "1.00 × time" in result.stdout, result.stdout
    assert [path.name for path in tmp_path.iterdir()] == ["out.json"]
    chosen = ["--task=moco", "--queue=64", "--precision=32", "--rows=standard, eager|deflated, compiled"]
    result = subprocess.run([sys.executable, str(script), *small, *chosen], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert "madao, influence, deflated, compiled" in result.stdout
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


@pytest.mark.slow
def test_the_known_answers_are_run_once_and_judged(tmp_path: Path) -> None:
    script, output = ROOT / "benchmarks" / "known_answers.py", tmp_path / "out.json"
    small = ["--epochs=1", "--seeds=1", "--planted=rotate", "--jobs=1", f"--output={output}"]
    first = subprocess.run([sys.executable, str(script), *small, "--methods=madao,uniform"], capture_output=True)
    assert first.returncode == 0, first.stderr
    before = json.loads(output.read_text())
    second = subprocess.run([sys.executable, str(script), *small, "--methods=uniform,standard"], capture_output=True)
    assert second.returncode == 0, second.stderr
    after = json.loads(output.read_text())
    assert after["cells"].keys() == {"madao rotate 0", "uniform rotate 0", "standard rotate 0"}
    assert after["cells"]["uniform rotate 0"] == before["cells"]["uniform rotate 0"]
    assert after["summary"]["madao rotate"]["compared"] == 1
    assert 0 < after["summary"]["madao rotate"]["largest_selection"] < 1


@pytest.mark.slow
def test_the_hardness_benchmark_runs(tmp_path: Path) -> None:
    script = ROOT / "benchmarks" / "hardness.py"
    small = ["--epochs=1", "--copies=2", "--steps=4", "--planted=rotate", f"--figure={tmp_path / 'out.png'}"]
    result = subprocess.run([sys.executable, str(script), *small], capture_output=True, text=True, cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert "v without the training gradient" in result.stdout
    assert (tmp_path / "out.png").exists()


@pytest.mark.slow
def test_the_signal_benchmark_runs(tmp_path: Path) -> None:
    settings = ["--epochs=1", "--batch_size=64", "--augment.crop=none", "--tensorboard=false"]
    main(["train", *settings, "--augment.method=uniform", f"--out={tmp_path / 'run'}"])
    script = ROOT / "benchmarks" / "gradient_signal.py"
    chosen = "--variants=paper|2 draws|deflated, 4"
    arguments = [sys.executable, str(script), str(tmp_path / "run"), "--steps=4", "--warm=1", chosen]
    result = subprocess.run([*arguments, f"--output={tmp_path / 'out.json'}"], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    variants = json.loads((tmp_path / "out.json").read_text())["variants"]
    assert len(variants) == 3
    for row in variants.values():
        assert -1 <= row["selection"]["agreement"] <= 1
        assert row["milliseconds"] > 0
        assert len(row["favours"]) == 5


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


def test_the_worth_of_operations_is_what_errors_were_made_of(monkeypatch: pytest.MonkeyPatch) -> None:
    script = module(ROOT / "benchmarks" / "worth.py", monkeypatch)
    true = {name: index - 6.5 for index, name in enumerate(script.OPERATIONS)}  # points, which sum to 0
    generator = np.random.default_rng(0)
    cells: dict[str, dict[str, Any]] = {}
    for pair in range(40):
        first = script.half(pair)
        for which, without in (("a", [name for name in true if name not in first]), ("b", first)):
            points = sum(true[name] for name in true if name not in without)
            cells[f"{pair} {which}"] = {"without": without, "test_error": 0.5 - points / 100}
    assert max(error for _, error in script.worth(cells).values()) < 1e-9
    assert {name: worth for name, (worth, _) in script.worth(cells).items()} == pytest.approx(true)
    for cell in cells.values():
        cell["test_error"] += generator.normal() / 100
    off = [(worth - true[name]) / error for name, (worth, error) in script.worth(cells).items()]
    assert 0.5 < np.std(off) < 1.7, "as far off as the standard errors say"
    assert script.worth({key: cells[key] for key in ("0 a", "0 b")}) == {}
    look = {"100": {"v": true, "against": {name: -worth for name, worth in true.items()}}}
    ranks = script.summary({**cells, "all 0": {"influence": look}})["rank_correlation"]
    assert (ranks["v, epoch 100"]["value"], ranks["against, epoch 100"]["value"]) == pytest.approx((1, -1), abs=0.2)


@pytest.mark.slow
def test_the_worth_benchmark_trains_and_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    def generated(source: Source) -> Dataset:
        numbers = torch.Generator().manual_seed(0)
        pixels = torch.randint(0, 256, (2000, 3, 32, 32), dtype=torch.uint8, generator=numbers)
        images = Pixels(pixels, torch.arange(2000) % 10)
        return Dataset("cifar10", tuple("0123456789"), images, None, images.subset(torch.arange(10)), flip=True)

    script = module(ROOT / "benchmarks" / "worth.py", monkeypatch)
    monkeypatch.setitem(DATASETS, "cifar10", generated)
    monkeypatch.setattr(script, "COPIES", 1)
    cell = script.train([], 0, 1, "data", (1,))
    assert cell["without"] == []
    assert [*cell["influence"]] == ["1"]
    for row in cell["influence"]["1"].values():
        assert [*row] == script.OPERATIONS
        assert all(np.isfinite(value) for value in row.values())


def test_the_moco_benchmark_says_what_there_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = module(ROOT / "benchmarks" / "moco.py", monkeypatch)
    for method, error in (("standard", 0.3), ("madao", 0.25)):
        write_run(cell_path(tmp_path / "runs", method, 0), method, 0, epochs=3, error=error)
    path = tmp_path / "moco-cifar10.json"
    path.write_text(record(read_cells(tmp_path / "runs"), {}, {}))
    commands: list[list[str]] = []

    def madao(command: list[str]) -> str:
        commands.append(command)
        if command[0] == "compare":
            return ""
        split, rate = command[command.index("--split") + 1], float(command[command.index("--linear.lr") + 1])
        assert split == "validation" or rate == 3, "test images choose nothing"
        return f"{split} linear error {20 + abs(rate - 3):.2f} % (2000 of 10000), loss 1.0"

    monkeypatch.setattr(script, "_madao", madao)
    monkeypatch.setattr(sys, "argv", ["moco.py", "--run", "--results", str(tmp_path), "--output", str(tmp_path)])
    script.main()
    assert read_plan(commands[0][1:]).base.task.name == "moco"
    assert len(commands) == 1 + len(script.METHODS) * (len(script.RATES) + 1)
    table = script.table(json.loads(path.read_text())).splitlines()
    assert table[2].startswith("| standard | 70.00 | 80.00 (rate 3) |")
    assert table[3] == "| every operation alike | missing | missing | missing | missing | missing |"
    assert table[4].startswith("| learned policy | 75.00 | 80.00 (rate 3) |")
    assert (tmp_path / "moco.png").stat().st_size > 10_000
    for wrong in (["--out", "x"], ["--run", "--seeds", "3"]):
        monkeypatch.setattr(sys, "argv", ["moco.py", *wrong])
        with pytest.raises(SystemExit):
            script.main()


ENTRIES = sorted(path for path in (ROOT / "benchmarks" / "paper").glob("*.py") if path.stem != "entries")


def test_the_papers_tables_and_figures_say_what_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks" / "paper"))
    names = {"table1", "table2", "table3", "figure2", "figure3", "figure5", "figure6", "figure7", "untrained"}
    assert {path.stem for path in ENTRIES} == names | {"ablations"}
    for path in ENTRIES:
        script = module(path, monkeypatch)
        text = script.rebuild(tmp_path, tmp_path)
        assert "missing" in text or "no run of it is there" in text
        for entry in script.ENTRIES[-1:]:
            (command,) = entry.commands(tmp_path, "data")
            plan = read_plan(command[1:])
            assert [*plan.methods] == [*entry.methods]
            assert plan.seeds == [0, 1, 2]
            if entry.epochs is not None:  # all of the schedule is as much shorter
                assert (plan.base.epochs, plan.base.outer.warmup) == (60, 6)
    assert not [*tmp_path.iterdir()]


def test_a_recipe_that_fails_does_not_keep_the_next_from_being_trained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = module(ROOT / "benchmarks" / "paper" / "entries.py", monkeypatch)
    for codes, trained, expected in (([2, 0, 1], 3, 2), ([2, 130, 0], 2, 130), ([0, 0, 0], 3, 0)):
        recipes: list[str] = []

        def ended(command: list[str], recipes: list[str] = recipes, codes: list[int] = codes) -> int:
            recipes.append(command[2])
            return codes[len(recipes) - 1]

        monkeypatch.setattr(script, "madao", ended)
        monkeypatch.setattr(sys, "argv", ["table1.py", "--run", "--results", str(tmp_path)])
        with pytest.raises(SystemExit) as end:
            script.main("", script.TABLE1[:3], lambda results, output: "")
        assert (len(recipes), end.value.code) == (trained, expected)


def test_the_papers_tables_and_figures_are_rebuilt_from_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks" / "paper"))
    entries = module(ROOT / "benchmarks" / "paper" / "entries.py", monkeypatch)
    entry, errors = entries.TABLE1[0], {0: 0.040, 1: 0.050, 2: 0.060}
    for seed, error in errors.items():
        write_run(cell_path(tmp_path / "runs", "madao", seed), "madao", seed, epochs=3, error=error)
    write_run(cell_path(tmp_path / "runs", "uniform", 1), "uniform", 1, epochs=3, error=0.055)
    write_run(cell_path(tmp_path / "runs", "s60", 0), "madao", 0, epochs=3, error=0.045)
    results = tmp_path / "results"
    results.mkdir()
    rehearsal = record(read_cells(tmp_path / "runs", ["madao", "uniform"]), {}, {})
    entry.path(results).write_text(rehearsal)
    with pytest.raises(SystemExit, match="has cells whose epochs is not 200"):
        entry.cells(results)
    steps = record(read_cells(tmp_path / "runs", ["s60"]), {}, {})
    short = results / "paper-cifar10-wrn-28-2-60.json"
    for path, text, epochs in ((entry.path(results), rehearsal, 200), (short, steps, 60)):
        path.write_text(text.replace('"epochs": 3,', f'"epochs": {epochs},'))
    # t for 97.5 % and 2 degrees of freedom is 4.302653: 4.302653 · 1 % / √3.
    table = module(ROOT / "benchmarks" / "paper" / "table1.py", monkeypatch).rebuild(results, tmp_path)
    assert "| 5.00 ± 2.48 (paper: 4.6) | 5.50 [1 of 3 seeds] | missing |" in table
    untrained = module(ROOT / "benchmarks" / "paper" / "untrained.py", monkeypatch).rebuild(results, tmp_path)
    assert "| madao | 5.00 | -0.50 | 4.6 |" in untrained
    assert entries.edge(entries.error(entry.cells(results)["madao"]), 1) == pytest.approx(0.06)
    (seeds, methods), *_ = [(s, m) for s, m in entry.missing(results).items() if "uniform" in m]
    assert (seeds, methods) == ((0, 2), ["uniform"])
    said = module(ROOT / "benchmarks" / "paper" / "figure3.py", monkeypatch).rebuild(results, tmp_path / "figures")
    assert said.endswith("missing: 1, 5, 10, 30, 120")
    for name in ("figure5", "figure6"):
        module(ROOT / "benchmarks" / "paper" / f"{name}.py", monkeypatch).rebuild(results, tmp_path / "figures")
    drawn = {path.name for path in (tmp_path / "figures").iterdir()}
    assert drawn == {f"paper-figure{number}.{kind}" for number in (3, 5, 6) for kind in ("png", "svg")}


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
