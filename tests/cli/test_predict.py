"""`madao predict` as a user meets it."""

import csv
import io
import json
import signal
from pathlib import Path

import pytest
from torch import Tensor

from madao.cli import main
from madao.inference import ImageModel
from tests.helpers.command_line import fails
from tests.helpers.run_of_photos import NAMES, save_every_form, train, write_photos


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    return train(write_photos(folder / "photos"), folder / "run", "small-cnn")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of eleven files, the present one beside it."""
    monkeypatch.chdir(tmp_path)
    save_every_form(tmp_path / "new")
    return Path("new")


def test_csv_holds_any_name(run: Path, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    odd = folder / 'a, "b"\n.png'
    (folder / "grey.png").rename(odd)
    assert main(["predict", str(run), str(folder), "--format", "csv"]) == 0
    printed = capsys.readouterr()
    assert printed.err == ""
    header, *rows = csv.reader(io.StringIO(printed.out))
    assert header == ["path", "class", "probability", "class_2", "probability_2", "class_3", "probability_3"]
    assert [row[0] for row in rows] == sorted(str(path) for path in folder.iterdir())
    for row in rows:
        assert {row[1], row[3], row[5]} == set(NAMES)
        shares = [float(row[place]) for place in (2, 4, 6)]
        assert shares == sorted(shares, reverse=True)
        assert sum(shares) == pytest.approx(1, abs=1e-5)


def test_json_and_a_file_of_it(run: Path, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["predict", str(run), str(folder), "--format=json", "--top=1"]) == 0
    printed = capsys.readouterr().out
    found = json.loads(printed)
    assert [entry["path"] for entry in found] == sorted(str(path) for path in folder.iterdir())
    assert all(len(entry["predictions"]) == 1 for entry in found)
    assert {entry["predictions"][0]["class"] for entry in found} <= set(NAMES)
    assert main(["predict", str(run), str(folder), "--format=json", "--top=1", "--out=found.json"]) == 0
    assert Path("found.json").read_text() == printed
    assert capsys.readouterr().out == ""


def test_the_table_is_safe_for_a_terminal(run: Path, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "grey.png").rename(folder / "\x1b]0;title\x07.png")
    assert main(["predict", str(folder), "--run", str(run)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 11
    assert all(line.isprintable() for line in lines)
    assert all(line.count(" %") == 3 for line in lines)


def test_unreadable_files_are_named_and_counted(run: Path, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "\x1b[2J.jpg").write_bytes(b"junk")
    (folder / "half.jpg").write_bytes((folder / "large.jpg").read_bytes()[:2000])
    assert main(["predict", str(run), str(folder), "--format=csv", "--batch_size=2"]) == 0
    printed = capsys.readouterr()
    assert len([*csv.reader(io.StringIO(printed.out))]) == 12
    first, second, last = printed.err.splitlines()
    assert r"\x1b[2J.jpg" in first
    assert "half.jpg" in second
    assert "2 of 13" in last
    assert main(["predict", str(run), str(folder / "half.jpg"), "--format=json"]) == 1
    printed = capsys.readouterr()
    assert json.loads(printed.out) == []
    assert "1 of 1 file" in printed.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["none", "new"], "none is not a run directory"),
        (["new", "RUN"], "new is not a run directory"),
        (["RUN"], "paths"),
        ([], "paths"),
        (["RUN", "nothing.jpg"], "no file or folder nothing.jpg"),
        (["RUN", "new", "--top=0"], "--top must be at least 1, got 0"),
        (["RUN", "new", "--batch_size=0"], "--batch_size must be at least 1, got 0"),
        (["RUN", "new", "--format=xml"], "--format: expected one of table, csv, json"),
        (["RUN", "new", "--device=tpu:9"], "--device"),
        (["RUN", "new", "--tops=2"], "did you mean '--top'?"),
        (["RUN", "new", "--out=new"], "new"),
    ],
)
def test_mistakes_are_one_line(
    arguments: list[str], message: str, run: Path, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = [str(run) if argument == "RUN" else argument for argument in arguments]
    assert message in fails(["predict", *given], capsys)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_it_after_a_file_and_leaves_no_part(
    number: int,
    code: int,
    run: Path,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    calls: list[None] = []
    forward = ImageModel.forward

    def interrupted(model: ImageModel, images: Tensor) -> Tensor:
        calls.append(None)
        if len(calls) == 2:
            signal.raise_signal(number)
        return forward(model, images)

    monkeypatch.setattr(ImageModel, "forward", interrupted)
    arguments = ["predict", str(run), str(folder), "--batch_size=1", "--format=csv"]
    assert main(arguments) == code
    printed = capsys.readouterr()
    assert len(calls) == 2
    assert len(printed.out.splitlines()) == 3  # the header, and both files
    assert printed.err.splitlines()[-1] == "madao: stopped"
    calls.clear()
    assert main([*arguments, "--out=found.csv"]) == code
    assert [path.name for path in Path().iterdir()] == ["new"]


def test_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["predict", "--help"]) == 0
    assert "madao predict RUN PATH [PATH …] [OPTIONS]" in " ".join(capsys.readouterr().out.split())
