"""The examples run, and find the rotation of the digits."""

import runpy
import sys
from pathlib import Path

import pytest
from PIL import Image

import madao

EXAMPLES = Path(__file__).parents[2] / "examples"


def run(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch, *arguments: str) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "argv", [name, *arguments])
    runpy.run_path(str(EXAMPLES / name), run_name="__main__")


def shares(path: Path) -> dict[str, float]:
    """The mean selection probability of each operation in a policy.json."""
    spec = madao.PolicySpec.load(path)
    columns = zip(*spec.stages, strict=True)
    means = (sum(entry.selection for entry in column) / len(column) for column in columns)
    return dict(zip((operation.name for operation in spec.operations), means, strict=True))


@pytest.mark.filterwarnings("ignore:.*does not have many workers.*")
@pytest.mark.filterwarnings("ignore:.*treespec, LeafSpec.*")
@pytest.mark.parametrize("name", ["plain_loop.py", pytest.param("lightning_digits.py", marks=pytest.mark.slow)])
def test_rotated_digits_are_met_with_rotation(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run(name, tmp_path, monkeypatch)
    without, learned, _, selected = capsys.readouterr().out.strip().splitlines()[-4:]
    found = shares(tmp_path / "policy.json")
    others = [share for operation, share in found.items() if operation != "Rotate"]
    assert found["Rotate"] > 1.25 * max(others), found
    assert "Rotate" in selected
    assert percent(learned) < 0.75 * percent(without)


def percent(line: str) -> float:
    return float(line.rsplit(" ", 1)[1].removesuffix("%"))


@pytest.mark.filterwarnings("ignore:unclosed file .*png:ResourceWarning")  # timm leaves them to the collector
def test_timm_s_loaders_and_models(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for part, count in (("train", 8), ("validation", 6)):
        for label, colour in enumerate(("red", "blue")):
            (tmp_path / part / colour).mkdir(parents=True)
            for number in range(count):
                image = Image.new("RGB", (40, 36), colour)
                image.paste("white", (4 * number, 8, 4 * number + 9, 20 + 5 * label))
                image.save(tmp_path / part / colour / f"{number}.png")
    options = "--model test_resnet --size 32 --epochs 3 --batch 4 --every 2 --workers 0"
    run("timm_loader.py", tmp_path, monkeypatch, str(tmp_path), *options.split())
    assert "validation error" in capsys.readouterr().out
    found = shares(tmp_path / "policy.json")
    assert len(found) == 14
    assert max(found.values()) > min(found.values()) + 0.005  # 0.071 each at the start
