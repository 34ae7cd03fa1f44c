"""Run directories of strangers: the report shows what can be read and names the rest; nothing hangs or is imported."""

import io
import json
import os
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

import madao
from madao.cli import main
from madao.cli.train import read_config
from madao.errors import UserError
from madao.report import read_run
from madao.training.run.directory import RunDirectory
from madao.training.run.result import Result
from tests.helpers.mutations import VALUES
from tests.helpers.run_directories import write_run

FIELDS = {
    "config.yaml": ["epochs", "seed", "data", "augment.method", "augment.limits", "outer.warmup", "data.name", "out"],
    "result.json": ["test_error", "validation_error", "test_loss", "epoch", "test_metrics", "policy", "out"],
    "split.json": ["classes", "mean", "std", "validation"],
    "environment.json": ["device", "model", "torch"],
}


@pytest.fixture(scope="module")
def intact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_run(tmp_path_factory.mktemp("runs") / "run", epochs=4)


def damage(run: Path, folder: Path, name: str, content: bytes) -> Path:
    """A copy of a run in which one file is another."""
    copy = folder / "copy"
    copy.mkdir(exist_ok=True)
    for path in run.iterdir():
        if path.is_file():
            (copy / path.name).write_bytes(path.read_bytes())
    (copy / name).write_bytes(content)
    return copy


def reported(run: Path, folder: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """The page of a run, which is written at once, or the one line that refuses it."""
    started, page = time.process_time(), folder / "report.html"
    page.unlink(missing_ok=True)
    code = main(["report", str(run), "--out", str(page), "--figures", "false"])
    printed = capsys.readouterr()
    assert code in (0, 2)
    assert "Traceback" not in printed.err
    assert time.process_time() - started < 8
    return page.read_text() if code == 0 else printed.err


@pytest.mark.parametrize(("name", "field"), [(name, field) for name, fields in FIELDS.items() for field in fields])
def test_one_wrong_field_leaves_the_rest_of_the_report(
    name: str, field: str, intact: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    read: Callable[[str], Any] = yaml.safe_load if name.endswith(".yaml") else json.loads
    for value in (None, [], {}, "x", -1, 1e308, [[1]], {"a": [1]}, "\ud800", True):
        content = read((intact / name).read_text())
        *section, key = field.split(".")
        (content[section[0]] if section else content)[key] = value
        write = yaml.safe_dump if name.endswith(".yaml") else json.dumps
        page = reported(damage(intact, tmp_path, name, write(content).encode()), tmp_path, capsys)
        assert "Its effect on images" in page or "config.yaml" in page, (field, value)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["config.yaml", "result.json", "split.json", "environment.json", "policy.json"])
def test_any_value_in_the_place_of_another(
    name: str, intact: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for value in VALUES:
        text = json.dumps(value)
        reported(damage(intact, tmp_path, name, text.encode()), tmp_path, capsys)
        content = yaml.safe_load((intact / name).read_text())
        for key in content:
            write = yaml.safe_dump if name.endswith(".yaml") else json.dumps
            reported(damage(intact, tmp_path, name, write({**content, key: value}).encode()), tmp_path, capsys)


def archive(images: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.savez_compressed(file, images=images)
    return file.getvalue()


def zeros(count: int) -> bytes:
    """An archive that is small and claims `count` images of 1 MB each."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive, archive.open("images.npy", "w") as member:
        np.lib.format.write_array_header_1_0(
            member, {"descr": "|u1", "fortran_order": False, "shape": (count, 1, 1000, 1000)}
        )
        for _ in range(200):
            member.write(bytes(1_000_000))
    return file.getvalue()


STAGE = {name: {"selection": 1 / 2, "application": 1.0} for name in ("Invert", "Equalize")}
MANY_STAGES = {"format": "madao-policy", "version": 1, "fill": 0.0, "operations": {"Invert": {}, "Equalize": {}}}
HOSTILE = {
    "many images": ("samples.npz", archive(np.zeros((50_000, 1, 2, 2), np.uint8))),
    "no images": ("samples.npz", archive(np.zeros((0, 1, 2, 2), np.uint8))),
    "images of another kind": ("samples.npz", archive(np.zeros((4, 2, 8, 8), np.float64))),
    "an archive of zeros": ("samples.npz", zeros(200)),
    "an archive that claims 10^9 images": ("samples.npz", zeros(10**9)),
    "many stages": ("policy.json", json.dumps({**MANY_STAGES, "stages": [STAGE] * 3_000}).encode()),
    "a fill of another number": ("policy.json", None),
    "a long line": ("metrics.csv", b"epoch,step\n1," + b"9" * 500_000 + b"\n"),
    "null characters": ("metrics.csv", b"epoch,step\n1,\0\n"),
    "numbers without end": ("metrics.csv", b"epoch,train_loss\n1,inf\n1e300,1e308\nnan,nan\n"),
    "no epochs": ("metrics.csv", b"epoch\n"),
    "many states": ("outer.csv", b"epoch,step,status\n" + b"".join(b"1,%d,s%d\n" % (i, i) for i in range(50_000))),
    "other shapes": ("trajectory.jsonl", b'{"epoch": 0, "selection": [[1]], "application": [], "magnitude": 0}\n'),
    "other operations": ("trajectory.jsonl", b'{"epoch": 0, "operations": [[1], {}]}\n' * 3),
    "deep": ("result.json", b"[" * 200_000),
    "large numbers": ("result.json", b'{"test_error": 1' + b"0" * 4_000 + b', "epoch": NaN, "test_loss": 1e999}'),
}


@pytest.mark.parametrize(("name", "content"), HOSTILE.values(), ids=HOSTILE)
def test_hostile_files_leave_the_rest_of_the_report(
    name: str, content: bytes | None, intact: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if content is None:
        content = madao.Policy(fill=(0.1, 0.2, 0.3)).spec().dumps().encode()
        run = damage(intact, tmp_path, "samples.npz", archive(np.zeros((4, 1, 8, 8), np.uint8)))
        (run / name).write_bytes(content)
    else:
        run = damage(intact, tmp_path, name, content)
    page = reported(run, tmp_path, capsys)
    assert "Settings" in page or "first epoch" in page


@pytest.mark.parametrize("name", ["config.yaml", "metrics.csv", "result.json", "policy.json", "samples.npz"])
@pytest.mark.parametrize("kind", ["folder", "pipe", "loop"])
def test_what_is_no_regular_file_is_not_opened(
    name: str, kind: str, intact: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = damage(intact, tmp_path, name, b"")
    (run / name).unlink()
    match kind:
        case "folder":
            (run / name).mkdir()
        case "pipe":
            os.mkfifo(run / name)
        case "loop":
            (run / name).symlink_to(name)
    reported(run, tmp_path, capsys)
    if name == "config.yaml":
        with pytest.raises((UserError, OSError)):
            read_config(["--out", str(run), "--resume"])
        assert main(["evaluate", str(run)]) == 2
        assert main(["train", "--out", str(run), "--epochs", "1"]) == 2


def test_the_report_names_what_it_could_not_read(intact: Path, tmp_path: Path) -> None:
    run = damage(intact, tmp_path, "result.json", b'{"test_error": "low", "epoch": 4, "test_loss": 0.5}')
    found = read_run(run)
    assert dict(found.result) == {"epoch": 4, "test_loss": 0.5}
    assert [message for message in found.missing if "test_error" in message]
    run = damage(intact, tmp_path, "config.yaml", b"{epochs: many, seed: 3, data: {size: []}, augment: {method: base}}")
    found = read_run(run)
    assert (found.setting("epochs"), found.setting("seed"), found.method) == (None, 3, "base")
    assert len([message for message in found.missing if message.startswith("config.yaml")]) == 2


@pytest.mark.parametrize(
    "content", [b"", b"[1]", b"{}", b"\xff", b"[" * 100_000, b'{"test_error": "low"}', b'{"epoch": 4, "more": 1}']
)
def test_a_damaged_result_is_one_line(content: bytes, intact: Path, tmp_path: Path) -> None:
    assert Result.load(intact) is not None
    with pytest.raises(UserError, match="damaged"):
        Result.load(damage(intact, tmp_path, "result.json", content))


@pytest.mark.parametrize("line", [b"2,\xff,", b"x", b'{"epoch": "2"}', b'{"epoch": null}', b"[" * 100_000])
@pytest.mark.parametrize("name", ["metrics.csv", "outer.csv", "trajectory.jsonl"])
def test_a_damaged_line_ends_a_table_when_a_run_is_resumed(
    name: str, line: bytes, intact: Path, tmp_path: Path
) -> None:
    lines = (intact / name).read_bytes().splitlines(keepends=True)
    run = damage(intact, tmp_path, name, b"".join([*lines[:2], line + b"\n", *lines[2:]]))
    RunDirectory(run).rewind(4)
    assert (run / name).read_bytes() == b"".join(lines[:2])
