"""Text from files reaches the terminal without what a terminal would obey."""

import io
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
import yaml
from PIL import Image

from madao.cli import main, say
from madao.cli.compare import _show
from madao.experiments.table import tabulate
from madao.text import nearest
from madao.training.monitor.console import Console
from tests.helpers.command_line import fails
from tests.helpers.run_directories import write_run

CLEAR = "\x1b[2J\x1b]0;title\x07"


def check_harmless(text: str) -> None:
    assert all(each == "\n" or each.isprintable() for each in text), ascii(text)


def test_class_names_of_a_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in (f"cat{CLEAR}", "[bold]dog\nowl", "\udcffbird"):
        (tmp_path / "photos" / name).mkdir(parents=True)
        for number in range(4):
            picture = Image.fromarray(np.full((8, 8, 3), 60 * number, np.uint8))
            picture.save(tmp_path / "photos" / name / f"{number}.png")
    run, policy = str(tmp_path / f"run{CLEAR}"), str(tmp_path / f"{CLEAR}.json")
    arguments = ["--data.root", str(tmp_path / "photos"), "--data.size", "8", "--out", run]
    more = ["--epochs", "1", "--logger", "none", "--device", "cpu", "--data.workers", "0", "--batch_size", "4"]
    assert main(["train", *arguments, *more]) == 0
    printed = capsys.readouterr()
    check_harmless(printed.out + printed.err)
    assert r"cat\x1b[2J" in printed.out
    assert main(["report", run, "--figures", "false"]) == 0
    assert main(["export", run, "--to", "json", "--out", policy]) == 0
    printed = capsys.readouterr()
    check_harmless(printed.out + printed.err)


def test_the_run_in_progress(capsys: pytest.CaptureFixture[str]) -> None:
    stream = io.StringIO()
    console = Console(f"[red]{CLEAR}run", 10, stream=stream)
    console.say(f"the class {CLEAR}")
    check_harmless(stream.getvalue())
    assert "[red]" in stream.getvalue()
    say(f"a line of {CLEAR}")
    check_harmless(capsys.readouterr().out)


def test_names_of_variants(capsys: pytest.CaptureFixture[str]) -> None:
    _show(tabulate({}, {f"[red]{CLEAR}mine": [0]}, None))
    printed = capsys.readouterr().out
    check_harmless(printed)
    assert r"[red]\x1b[2J" in printed


@pytest.mark.parametrize("file", ["config.yaml", "result.json", "policy.json", "metrics.csv"])
def test_files_of_a_run(file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = write_run(tmp_path / f"run{CLEAR}", epochs=2)
    name = {"policy.json": f"{CLEAR}operation"}.get(file, CLEAR)
    if file == "config.yaml":
        (run / file).write_text(yaml.safe_dump({"augment": {CLEAR: CLEAR, "method": CLEAR}, CLEAR: 1}))
    else:
        (run / file).write_text(f'{{"{name}": "{name}"}}')
    for arguments in (["report", str(run), "--figures", "false"], ["train", "--out", str(run), "--resume"]):
        main(arguments)
        printed = capsys.readouterr()
        check_harmless(printed.out + printed.err)


def test_unknown_names_are_shown_short_and_escaped() -> None:
    for text in (nearest(CLEAR, ["a", f"b{CLEAR}"]), nearest("x" * 10_000_000, ["a"])):
        check_harmless(text)
        assert len(text) < 300


def test_paths_that_are_no_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Bytes that are no UTF-8 reach Python as lone surrogates."""
    folder = Path(os.fsdecode(os.fsencode(tmp_path) + b"/ph\xff"))
    for arguments in (["--data.root", str(folder)], ["--out", str(folder)], ["--model.pretrained", str(folder)]):
        assert "UTF-8" in fails(["train", *arguments], capsys)
    run = write_run(tmp_path / "run", epochs=2)
    shutil.move(run, folder)
    assert main(["report", str(folder), "--figures", "false"]) == 0
    assert main(["export", str(folder), "--to", "json", "--out", str(folder / "policy")]) == 0
    for arguments in (["report", str(folder / "a")], ["evaluate", str(folder / "a")], ["export", str(folder / "a")]):
        fails([*arguments, *(["--to", "json"] if arguments[0] == "export" else [])], capsys)
    printed = capsys.readouterr()
    check_harmless(printed.out + printed.err)
