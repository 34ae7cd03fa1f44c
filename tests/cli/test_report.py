"""`madao report` as a user meets it."""

import shutil
import time
from pathlib import Path

import pytest
from PIL import Image

from madao.cli import main
from tests.helpers.run_directories import write_run


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
        write_run(tmp_path / "runs" / str(seed), "base", seed, epochs=2)
    write_run(tmp_path / "other", "uniform", 0, epochs=2)
    assert main(["report", "--figures", "False", "runs", "--out=x.html", "other"]) == 0
    assert "3 runs" in (tmp_path / "x.html").read_text()
    assert not (tmp_path / "x-figures").exists()
    assert main(["report", "runs/0", "runs/1"]) == 0
    assert {path.stem for path in (tmp_path / "report-figures").iterdir()} == {"validation-1"}
    assert "wrote report.html" in capsys.readouterr().out
    assert main(["report", "runs", "--figures", "False"]) == 0
    assert "wrote runs/report.html" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["absent"], "there is no folder absent"),
        (["empty"], "empty is no run directory"),
        (["begun"], "has not finished its first epoch"),
        (["run", "--out", "empty"], "empty is a folder; name an HTML file with --out"),
        (["run", "--runs", "run"], "with or without --runs, not both"),
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


def test_runs_are_found_below_folders_and_what_is_broken_is_left_out_and_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    write_run(tmp_path / "runs" / "a" / "deep", "base", 0, epochs=1)
    write_run(tmp_path / "runs" / "b \U0001f600", "base", 1, epochs=1)
    begun = write_run(tmp_path / "runs" / "begun", epochs=1)
    (begun / "metrics.csv").unlink()
    assert main(["report", "runs", "runs/b \U0001f600", "--figures", "false"]) == 0
    assert "left out: runs/begun has not finished" in capsys.readouterr().out
    text = (tmp_path / "report.html").read_text()
    assert "<h1>2 runs</h1>" in text
    assert "runs/begun has not finished" in text


def test_runs_of_an_older_version_are_compared_with_those_of_this_one(tmp_path: Path) -> None:
    for name, method in (("a", "base"), ("b", "uniform")):
        write_run(tmp_path / name, method, epochs=1)
    path = tmp_path / "a" / "config.yaml"
    kept = [line for line in path.read_text().splitlines() if not line.startswith("ema:")]
    path.write_text("\n".join(kept))
    assert main(["report", str(tmp_path), "--out", str(tmp_path / "x.html"), "--figures", "false"]) == 0
    assert "against base" in (tmp_path / "x.html").read_text()


def test_nothing_is_left_behind_where_writing_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = write_run(tmp_path / "run", epochs=1)

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.replace", full)
    assert main(["report", str(run), "--figures", "false"]) == 2
    assert not [*run.glob("report*")]
