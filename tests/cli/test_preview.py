"""`madao preview` as a user meets it."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from madao import Policy
from madao.cli import main


def test_writes_a_contact_sheet(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "sheet.png"
    assert main(["preview", f"--output={output}", "--rows=2", "--columns=3", "--size=48"]) == 0
    assert "2 images, 3 draws each" in capsys.readouterr().out
    assert main(["preview", f"--output={tmp_path / 'one.png'}", "--rows=1", "--columns=1", "--size=48"]) == 0
    assert "1 image, 1 draw each" in capsys.readouterr().out
    with Image.open(output) as picture:
        sheet = np.asarray(picture)
    tile = sheet[8:56, 8:56]
    assert tile.std() > 10  # the original is a picture, not a blank
    assert sheet.shape[1] >= 4 * (48 + 8) + 8
    assert (sheet[:, -8:] == 255).all(), "a caption runs over the edge"


def test_the_seed_decides(tmp_path: Path) -> None:
    sheets = []
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        assert main(["preview", f"--output={tmp_path / name}", f"--seed={seed}", "--rows=1", "--size=40"]) == 0
        sheets.append((tmp_path / name).read_bytes())
    assert sheets[0] == sheets[1] != sheets[2]


def test_a_folder_and_a_saved_policy(tmp_path: Path) -> None:
    folder = tmp_path / "photos" / "cats"
    folder.mkdir(parents=True)
    for number in range(3):
        Image.new("L", (30, 20), 40 * number).save(folder / f"{number}.png")
    Policy(exclude=["Invert"]).spec().save(tmp_path / "policy.json")
    output = tmp_path / "out.png"
    assert (
        main(["preview", f"--images={folder.parent}", f"--policy={tmp_path / 'policy.json'}", f"--output={output}"])
        == 0
    )
    with Image.open(output) as sheet:
        width, height = sheet.size
    assert height == 3 * (128 + 2 * 14 + 12) + 8
    assert width >= 7 * (128 + 8) + 8
    assert (width - 8) % 7 == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--policy=randaug"], "unknown policy 'randaug'; did you mean 'randaugment'?"),
        (["--policy=no/policy.json"], "there is no policy file 'no/policy.json'"),
        (["--images=/no/such/folder"], "no file or folder /no/such/folder"),
        (["--images={empty}"], "no image under"),
        (["--images={text}"], "as an image"),
        (["--policy={text}"], "not a whole JSON document"),
        (["--rows=0"], "--rows must be at least 1, got 0"),
        (["--output=/dev/null/sheet.png"], "cannot write /dev/null/sheet.png: Not a directory"),
    ],
)
def test_mistakes_are_one_line_and_exit_code_2(
    arguments: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "broken.png").write_text("not a picture")
    places = {"empty": tmp_path / "empty", "text": tmp_path / "broken.png"}
    output = [] if any("--output" in argument for argument in arguments) else [f"--output={tmp_path / 'x.png'}"]
    assert main(["preview", *(argument.format(**places) for argument in arguments), *output]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert len(error.strip().splitlines()) == 1
    assert not (tmp_path / "x.png").exists()


def test_unknown_option(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["preview", "--rowz=3"]) == 2
    assert "unknown option '--rowz'; did you mean '--rows'?" in capsys.readouterr().err


def test_help_says_what_each_option_does() -> None:
    result = subprocess.run([sys.executable, "-m", "madao.cli", "preview", "--help"], capture_output=True, text=True)
    assert result.returncode == 0
    assert "Write a sheet of images" in result.stdout
    assert "Number of draws for each image" in result.stdout
