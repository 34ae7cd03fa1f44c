"""Checkpoints: whatever happens, the newest whole one is found, and nothing in a file can run."""

import io
import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from madao.errors import UserError
from madao.files import load_torch, save_torch
from madao.training.run.checkpoint import LAST, PREVIOUS, Checkpoints


class Killed(BaseException):
    """As if the process had ended here."""


class Malicious:
    """Makes a folder when it is unpickled."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[str]]:
        return os.mkdir, (str(self.folder),)


def state(step: int) -> dict[str, Any]:
    return {"step": step, "model": {"weight": torch.full((50,), float(step))}, "best": None, "classes": ["é", "b"]}


def step_of(found: dict[str, Any] | None) -> int:
    """The step, after a look at the rest."""
    assert found is not None
    step = found["step"]
    assert isinstance(step, int)
    assert torch.equal(found["model"]["weight"], state(step)["model"]["weight"])
    assert {**found, "model": None} == {**state(step), "model": None}
    return step


def saved(folder: Path, *steps: int) -> Checkpoints:
    checkpoints = Checkpoints(folder)
    for step in steps:
        checkpoints.save(state(step))
    return checkpoints


def truncate(path: Path, part: float) -> None:
    whole = path.read_bytes()
    path.write_bytes(whole[: min(int(part * len(whole)), len(whole) - 1)])


def one_line(error: BaseException) -> str:
    text = str(error)
    assert text
    assert "\n" not in text
    return text


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def kill_at_rename(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """The process ends just before the `number`th rename."""
    rename, calls = os.replace, iter(range(1, 1000))

    def replace(source: Path, target: Path) -> None:
        if next(calls) == number:
            raise Killed
        rename(source, target)

    monkeypatch.setattr(os, "replace", replace)


def test_a_save_that_fails_half_way_leaves_the_last_and_the_previous(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoints = saved(tmp_path, 1, 2)
    before = {name: (tmp_path / name).read_bytes() for name in (LAST, PREVIOUS)}

    def half(content: Any, file: io.BufferedWriter) -> None:
        file.write(b"PK")
        raise Killed

    monkeypatch.setattr(torch, "save", half)
    with pytest.raises(Killed):
        checkpoints.save(state(3))
    assert {name: (tmp_path / name).read_bytes() for name in (LAST, PREVIOUS)} == before


def test_the_last_and_the_one_before_are_kept(tmp_path: Path) -> None:
    checkpoints = saved(tmp_path, 1)
    assert names(tmp_path) == {LAST}
    checkpoints.save(state(2))
    checkpoints.save(state(3))
    assert names(tmp_path) == {LAST, PREVIOUS}
    assert step_of(load_torch(tmp_path / LAST)) == 3
    assert step_of(load_torch(tmp_path / PREVIOUS)) == 2
    assert step_of(checkpoints.load()) == 3


def test_where_there_is_none_there_is_none(tmp_path: Path) -> None:
    assert Checkpoints(tmp_path).load() is None
    assert Checkpoints(tmp_path / "absent").load() is None
    assert not (tmp_path / "absent").exists()


@pytest.mark.parametrize("part", [0, 0.01, 0.3, 0.5, 0.9, 0.99, 1])
def test_a_last_one_cut_short_gives_way_to_the_previous(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, part: float
) -> None:
    checkpoints = saved(tmp_path, 1, 2)
    truncate(tmp_path / LAST, part)
    with caplog.at_level(logging.WARNING, "madao"):
        assert step_of(checkpoints.load()) == 1
    (record,) = caplog.records
    assert record.levelname == "WARNING"
    message = record.getMessage()
    assert str(tmp_path / LAST) in message
    assert f"going on from the one before it, {tmp_path / PREVIOUS}" in message
    assert "\n" not in message


def test_a_whole_last_one_gives_no_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    checkpoints = saved(tmp_path, 1, 2)
    truncate(tmp_path / PREVIOUS, 0.5)
    with caplog.at_level(logging.WARNING, "madao"):
        assert step_of(checkpoints.load()) == 2
    assert caplog.records == []


@pytest.mark.parametrize("part", [0, 0.5, 1])
def test_where_both_are_damaged_the_user_is_told(tmp_path: Path, part: float) -> None:
    checkpoints = saved(tmp_path, 1, 2)
    for name in (LAST, PREVIOUS):
        truncate(tmp_path / name, part)
    with pytest.raises(UserError, match="cannot read the checkpoint") as caught:
        checkpoints.load()
    assert str(tmp_path / LAST) in one_line(caught.value)


@pytest.mark.parametrize("number", [1, 2, 3])
def test_killed_at_any_rename_the_newest_whole_one_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    checkpoints = saved(tmp_path, 1, 2)
    with monkeypatch.context() as patched:
        kill_at_rename(patched, number)
        with pytest.raises(Killed):
            checkpoints.save(state(3))
    assert (tmp_path / LAST).exists() == (number < 3)
    assert step_of(Checkpoints(tmp_path).load()) == 2
    for step in (4, 5):
        checkpoints.save(state(step))
        assert step_of(checkpoints.load()) == step
    assert step_of(load_torch(tmp_path / PREVIOUS)) == 4


def test_a_previous_one_alone_is_found(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    checkpoints = saved(tmp_path, 1, 2)
    (tmp_path / LAST).unlink()
    with caplog.at_level(logging.WARNING, "madao"):
        assert step_of(checkpoints.load()) == 1
    assert caplog.records == []


def test_after_a_damaged_last_one_a_kill_at_any_rename_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in (1, 2):
        folder = tmp_path / str(number)
        checkpoints = saved(folder, 1, 2)
        truncate(folder / LAST, 0.5)
        assert step_of(checkpoints.load()) == 1
        with monkeypatch.context() as patched:
            kill_at_rename(patched, number)
            with pytest.raises(Killed):
                checkpoints.save(state(3))
        assert step_of(checkpoints.load()) in (1, 3)


def test_files_left_over_by_a_crash_are_harmless(tmp_path: Path) -> None:
    left = ("arriving.pt", "arriving.pt.part", "last.pt.part", "previous.pt.part", "best.pt.part")
    for name in left:
        (tmp_path / name).write_bytes(b"half a check")
    checkpoints = Checkpoints(tmp_path)
    assert checkpoints.load() is None
    for step in (1, 2):
        checkpoints.save(state(step))
        assert step_of(checkpoints.load()) == step
    assert step_of(load_torch(tmp_path / PREVIOUS)) == 1
    save_torch(tmp_path / "best.pt", state(3))
    assert step_of(load_torch(tmp_path / "best.pt")) == 3
    assert not names(tmp_path) & {"arriving.pt", "arriving.pt.part", "best.pt.part"}
