"""`madao export` as a user meets it."""

import subprocess
import sys
from pathlib import Path

import pytest

import madao
from madao.cli import main
from madao.export import TARGETS
from madao.inference.save import FORMATS
from madao.policy import PolicySpec, RandAugment, Uniform
from tests.helpers.training import settings, splits, trained


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run directory, with the present folder beside it."""
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "runs" / "x"
    folder.mkdir(parents=True)
    madao.Policy(limits={"Rotate": 10}).spec().save(folder / "policy.json")
    return folder


@pytest.mark.parametrize("target", TARGETS)
def test_a_run_becomes_a_file_that_says_how_it_is_used(
    target: str, run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["export", str(run), "--to", target]) == 0
    path = run.parents[1] / TARGETS[target].file
    printed = capsys.readouterr().out
    assert printed.startswith(f"wrote {TARGETS[target].file} (needs ")
    assert len(printed.splitlines()) == 3
    code = "\n".join(line[2:] for line in printed.splitlines()[1:2])
    compile(code, "printed", "exec")
    if target == "json":
        assert PolicySpec.load(path) == PolicySpec.load(run / "policy.json")
    else:
        compile(path.read_text(), path.name, "exec")
        assert path.stem in path.read_text()


def test_every_way_to_name_a_policy(run: Path) -> None:
    for number, (arguments, expected) in enumerate(
        [
            (["runs/x"], PolicySpec.load(run / "policy.json")),
            (["--run", "runs/x"], PolicySpec.load(run / "policy.json")),
            (["--run=runs/x/policy.json"], PolicySpec.load(run / "policy.json")),
            (["--overwrite", "runs/x"], PolicySpec.load(run / "policy.json")),
            (["--overwrite", "true", "--out=unused.json", "runs/x"], PolicySpec.load(run / "policy.json")),
            (["uniform"], Uniform().spec()),
            (["randaugment"], RandAugment().spec()),
        ]
    ):
        out = f"{number}.json"
        assert main(["export", *arguments, "--to", "json", "--out", out]) == 0
        assert PolicySpec.load(out) == expected


def test_a_file_that_is_there_stays_unless_told_otherwise(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = (run / "policy.json").read_text()
    assert main(["export", "uniform", "--to", "json", f"--out={run / 'policy.json'}"]) == 2
    assert "policy.json already exists; choose another --out, or add --overwrite" in capsys.readouterr().err
    assert (run / "policy.json").read_text() == before
    assert main(["export", "uniform", "--to", "json", f"--out={run / 'policy.json'}", "--overwrite"]) == 0
    assert PolicySpec.load(run / "policy.json") == Uniform().spec()
    assert [path.name for path in run.iterdir()] == ["policy.json"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["runs/none", "--to=json"],
            "no run or policy runs/none; give a run directory, a policy.json, uniform",
        ),
        (["empty", "--to=json"], "empty has no policy.json; runs of the method base have no policy"),
        (["trivialaugment", "--to=timm"], "trivialaugment does not fit into a policy file"),
        (["autoaugment-cifar10", "--to=timm"], "autoaugment-cifar10 does not fit into a policy file"),
        (["runs/x", "--to=keras"], "--to: expected one of torchvision, albumentations, kornia"),
        (["runs/x"], "to"),
        (["--to=json"], "run"),
        (["broken.json", "--to=json"], "broken.json: not a whole JSON document"),
        (["runs/x", "--to=json", "--out=runs"], "--out runs is a folder; give the path of a file"),
        (["runs/x", "--to=json", "--out=broken.json/x.json"], "cannot write broken.json/x.json"),
        (
            ["runs/x", "--to=model.h5"],
            "a file that ends in one of .safetensors, .pt2, .onnx for the model, got 'model.h5'",
        ),
        (["runs/x", "--to=model.pt2"], "runs/x is not a run directory"),
        (
            ["runs/x", "--to=model.pt2", "--out=a.pt2"],
            "--out goes with the policy, but --to model.pt2 exports the model",
        ),
        (["runs/x", "--to=model.pt2", "--label=a"], "--label goes with the policy"),
        (["runs/x", "--to=json", "--weights=best"], "--weights chooses a model, but --to json exports the policy"),
        (["runs/x", "--too=json"], "unknown option '--too'; did you mean '--to'?"),
    ],
)
def test_mistakes_are_one_line_and_exit_code_2(
    arguments: list[str], message: str, run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("empty").mkdir()
    Path("broken.json").write_text("{")
    before = sorted(Path().rglob("*"))
    assert main(["export", *arguments]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert len(error.strip().splitlines()) == 1
    assert sorted(Path().rglob("*")) == before


@pytest.mark.parametrize("suffix", [suffix for suffix in FORMATS if suffix != ".onnx"])
def test_the_model_of_a_run_becomes_a_file(
    suffix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    trained(settings(tmp_path / "x", "base", epochs=1), splits())
    capsys.readouterr()
    assert main(["export", "x", "--to", f"models/a{suffix}", "--weights", "best"]) == 0
    first, *usage = capsys.readouterr().out.splitlines()
    assert first.startswith(f"wrote models/a{suffix} (needs ")
    assert any(f'"models/a{suffix}"' in line for line in usage)
    before = Path(f"models/a{suffix}").read_bytes()
    assert before
    assert main(["export", "x", "--to", f"models/a{suffix}"]) == 2
    assert main(["export", "x", "--to", f"models/a{suffix}", "--overwrite"]) == 0


def test_help() -> None:
    result = subprocess.run([sys.executable, "-m", "madao.cli", "export", "--help"], capture_output=True, text=True)
    assert result.returncode == 0
    assert "madao export RUN [OPTIONS]" in " ".join(result.stdout.split())
    assert "--overwrite" in result.stdout
