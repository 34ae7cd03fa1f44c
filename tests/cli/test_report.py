"""`madao report` as a user meets it."""

import shutil
import time
from pathlib import Path

import pytest
from PIL import Image

from madao.cli import main
from tests.report.runs import write_run


def test_a_run_gets_its_report_and_figures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = write_run(tmp_path / "run", epochs=3)
    assert main(["report", str(run)]) == 0
    assert f"wrote {run}/report.html" in capsys.readouterr().out
    names = {path.stem for path in (run / "report-figures").iterdir()}
    assert names >= {"selection", "application", "magnitude", "loss", "error", "norms", "residual", "time", "memory"}
    for name in names:
        assert (run / "report-figures" / f"{name}.svg").read_text().count("<path") > 3
        with Image.open(run / "report-figures" / f"{name}.png") as picture:
            colours = picture.convert("RGB").resize((200, 120)).getcolors(24000)
        assert colours is not None
        assert len(colours) > 20, f"{name} is blank"


def test_figures_are_the_same_each_time(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", epochs=2)
    texts = []
    for name in ("a", "b"):
        assert main(["report", str(run), "--out", str(tmp_path / f"{name}.html")]) == 0
        texts.append((tmp_path / f"{name}-figures" / "loss.png").read_bytes())
    assert texts[0] == texts[1]


def test_several_runs_in_any_order_of_arguments(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for seed in (0, 1):
        write_run(tmp_path / "runs" / str(seed), "standard", seed, epochs=2)
    write_run(tmp_path / "other", "uniform", 0, epochs=2)
    assert main(["report", "--figures", "false", "runs", "--out", "x.html", "other"]) == 0
    assert "3 runs" in (tmp_path / "x.html").read_text()
    assert not (tmp_path / "x-figures").exists()
    assert main(["report", "runs/0", "runs/1"]) == 0
    assert {path.stem for path in (tmp_path / "report-figures").iterdir()} == {"validation-1", "paired-1"} - {
        "paired-1"
    }
    assert "wrote report.html" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["absent"], "there is no run directory absent"),
        (["empty"], "empty is no run directory: there is no config.yaml in it"),
        (["begun"], "has no metrics.csv with an epoch in it"),
        (["run", "--out", "empty"], "--out empty is a folder"),
        (["run", "--ouput", "x"], "did you mean '--out'?"),
        ([], "runs"),
    ],
)
def test_mistakes_are_one_line(
    arguments: list[str], text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    write_run(tmp_path / "run", epochs=1)
    begun = write_run(tmp_path / "begun", epochs=1)
    (begun / "metrics.csv").unlink()
    assert main(["report", *arguments]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert text in error


def test_a_report_of_200_epochs_is_quick_and_small(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", epochs=200, side=224)
    started = time.monotonic()
    assert main(["report", str(run)]) == 0
    assert time.monotonic() - started < 20
    assert (run / "report.html").stat().st_size < 12e6
    shutil.rmtree(run)
