"""A full disk is an error of one line that names the file; the old file stays."""

import csv
import errno
import logging
import os
import resource
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from madao import Policy
from madao.cli import main
from madao.files import replacing, save_torch
from madao.report.chart_model import Chart, Panel, Series
from madao.report.figures import write_figures
from madao.training.builders import data
from madao.training.monitor.loggers.run_logger import RunLogger
from madao.training.monitor.loggers.tensorboard import TensorBoardLogger
from madao.training.run.tables import METRICS, append_rows
from tests.helpers.command_line import fails
from tests.helpers.training import settings, trained


@contextmanager
def files_of_at_most(size: int) -> Iterator[None]:
    """No file can grow beyond a number of bytes, as on a disk that is full."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_wherever_a_checkpoint_fills_the_disk_the_old_one_stays(tmp_path: Path) -> None:
    path = tmp_path / "last.pt"
    save_torch(path, {"step": 1})
    before, state = path.read_bytes(), {"step": 2, "weight": torch.randn(3_000), "bias": torch.randn(50)}
    save_torch(tmp_path / "whole", state)
    size = (tmp_path / "whole").stat().st_size
    (tmp_path / "whole").unlink()
    for limit in range(0, size, 97):
        with files_of_at_most(limit), pytest.raises(OSError, match="too large") as caught:
            save_torch(path, state)
        assert caught.value.filename == str(path), limit
        assert path.read_bytes() == before
        assert [each.name for each in tmp_path.iterdir()] == ["last.pt"]


def test_a_table_that_cannot_grow_is_named(tmp_path: Path) -> None:
    path = tmp_path / "metrics.csv"
    row = dict.fromkeys(METRICS, 0.5)
    append_rows(path, [row])
    with files_of_at_most(path.stat().st_size + 10), pytest.raises(OSError, match="too large") as caught:
        append_rows(path, [row])
    assert caught.value.filename == str(path)


def preview(path: Path) -> None:
    assert main(["preview", f"--output={path}", "--rows=1", "--columns=1", "--size=64"]) == 0


def figure(path: Path) -> None:
    write_figures({path.stem: Chart("a", "title", "", [Panel([Series("x", [0, 1], [1.0, 2.0], 0)], "y")])}, path.parent)


def policy(path: Path) -> None:
    Policy().spec().save(path)


@pytest.mark.parametrize(("write", "name"), [(preview, "sheet.png"), (figure, "a.png"), (policy, "policy.json")])
def test_a_file_is_replaced_at_once_or_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write: Callable[[Path], None], name: str
) -> None:
    """Here the process is killed just before it would be."""

    class Killed(BaseException):
        pass

    def kill(source: Path, target: Path) -> None:
        raise Killed

    path = tmp_path / "new folder" / name
    write(path)
    before = path.read_bytes()
    path.write_bytes(b"the old one")
    with monkeypatch.context() as patched:
        patched.setattr(os, "replace", kill)
        with pytest.raises(Killed):
            write(path)
    assert path.read_bytes() == b"the old one"
    write(path)
    assert len(path.read_bytes()) == len(before)
    assert not [*path.parent.glob("*.part")]


def test_pipes_are_written_not_replaced(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        with replacing(pipe) as file:
            file.write(b"text")
        assert pipe.is_fifo()
        assert os.read(reader, 100) == b"text"
    finally:
        os.close(reader)


@pytest.mark.parametrize(("limit", "name"), [(300, "config.yaml"), (20_000, "best.pt"), (80_000, "arriving.pt")])
def test_a_run_that_fills_the_disk_names_the_file_and_resumes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], limit: int, name: str
) -> None:
    run = tmp_path / "run"
    options = ["--epochs=2", "--augment.method=base", "--batch_size=256", "--logger=none", "--device=cpu"]
    arguments = ["train", *options, "--resume", f"--out={run}"]
    with files_of_at_most(limit):
        line = fails(arguments, capsys)
    assert name in line
    assert main(arguments) == 0
    with (run / "metrics.csv").open() as file:
        assert [row["epoch"] for row in csv.DictReader(file)] == ["1", "2"]


def test_a_run_outlives_its_tensorboard_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, write = tmp_path / "tensorboard", TensorBoardLogger.write

    def after_deletion(logger: TensorBoardLogger, step: int, *numbers: Any) -> None:
        if step == 6:  # the second of three epochs
            shutil.rmtree(folder)
        write(logger, step, *numbers)

    monkeypatch.setattr(TensorBoardLogger, "write", after_deletion)
    trained(settings(tmp_path, logger="tensorboard"))
    events = EventAccumulator(str(folder))
    events.Reload()
    assert [event.step for event in events.Scalars("train_loss")] == [6, 9]


def test_a_run_goes_on_where_tensorboard_cannot_be_written(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "tensorboard").write_text("a file in its place")
    logger = RunLogger("tensorboard")
    logger.open(tmp_path, 0, settings(tmp_path))
    with caplog.at_level(logging.WARNING, "madao"):
        logger.write(3, {"loss": 0.5}, None, None)
        logger.write(6, {"loss": 0.5}, None, None)
    (record,) = caplog.records
    assert "step 3" in record.getMessage()


@pytest.mark.parametrize("trouble", ["a file in the path", "a folder that is read-only"])
def test_an_out_that_cannot_be_written_is_refused_before_images_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], trouble: str
) -> None:
    (tmp_path / "file").write_text("")
    out = tmp_path / ("file" if trouble == "a file in the path" else "new") / "run"

    def refuse(**_: Any) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    if trouble == "a folder that is read-only":  # root may write everywhere else
        monkeypatch.setattr(tempfile, "TemporaryFile", refuse)
    monkeypatch.setattr(data, "load_splits", lambda _: pytest.fail("images are read"))
    assert f"--out {out}" in fails(["train", f"--out={out}", "--device=cpu"], capsys)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file"]


def test_an_empty_test_split_is_refused_before_training(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    images, labels = np.zeros((40, 8, 8), np.uint8), np.arange(40) % 2
    np.savez(tmp_path / "photos.npz", x_train=images, y_train=labels, x_test=images[:0], y_test=labels[:0])
    line = fails(["train", f"--data.root={tmp_path / 'photos.npz'}", f"--out={tmp_path / 'run'}"], capsys)
    assert "the images in test" in line
    assert not (tmp_path / "run").exists()
