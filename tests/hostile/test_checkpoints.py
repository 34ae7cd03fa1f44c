"""Damaged checkpoints are noticed, whichever bit is wrong, and reading them changes no file."""

import contextlib
import logging
import multiprocessing
import os
import random
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any

import pytest
import torch

from madao.errors import DamagedFileError
from madao.files import read_torch, save_torch
from madao.training.run.checkpoint import DAMAGED, LAST, PREVIOUS, Checkpoints


def state(step: int) -> dict[str, Any]:
    torch.manual_seed(step)
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.BatchNorm2d(8), torch.nn.Linear(8, 5))
    momentum = {"state": {0: {"momentum_buffer": torch.randn(8, 3, 3, 3)}}, "param_groups": [{"lr": 0.1}]}
    return {"step": step, "model": model.state_dict(), "optimizer": momentum, "best": (0.25, 1), "classes": ["é", "b"]}


def flipped(data: bytes, bit: int) -> bytes:
    found = bytearray(data)
    found[bit // 8] ^= 1 << bit % 8
    return bytes(found)


def is_same(a: Any, b: Any) -> bool:
    """Whether two values have the same types and bits."""
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(is_same(a[key], b[key]) for key in a)
    if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
        return a.dtype == b.dtype and a.shape == b.shape and a.numpy().tobytes() == b.numpy().tobytes()
    return type(a) is type(b) and bool(a == b)


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_a_flipped_bit_is_noticed_or_changes_nothing(tmp_path: Path) -> None:
    """Some bits, such as padding and dates, mean nothing."""
    path, whole = tmp_path / "best.pt", state(1)
    save_torch(path, whole)
    data, refused = path.read_bytes(), 0
    for bit in random.Random(0).sample(range(8 * len(data)), 300):
        path.write_bytes(flipped(data, bit))
        try:
            assert is_same(read_torch(path), whole), bit
        except DamagedFileError:
            refused += 1
    assert refused > 150


@pytest.mark.slow
def test_no_bit_of_a_file_can_change_what_is_read(tmp_path: Path) -> None:
    path, whole = tmp_path / "best.pt", {"weight": torch.randn(5, 3), "step": 7, "best": (0.5, 1)}
    save_torch(path, whole)
    data = path.read_bytes()
    for bit in range(8 * len(data)):
        path.write_bytes(flipped(data, bit))
        with contextlib.suppress(DamagedFileError):
            assert is_same(read_torch(path), whole), bit


def test_a_tensor_marked_as_a_folder_is_refused(tmp_path: Path) -> None:
    """Its checksum is right, but torch would read nothing, and leave whatever is in memory."""
    path = tmp_path / "best.pt"
    save_torch(path, {"weight": torch.randn(50)})
    data = bytearray(path.read_bytes())
    entry = data.index(b"PK\1\2", data.rindex(b"archive/data/0") - 46)
    data[entry + 38] ^= 0x10
    path.write_bytes(data)
    with pytest.raises(DamagedFileError):
        read_torch(path)


@pytest.mark.parametrize("checksums", ["left out", "of no archive"])
def test_files_without_checksums_are_read(tmp_path: Path, checksums: str) -> None:
    path = tmp_path / "weights.pt"
    torch.serialization.set_crc32_options(checksums != "left out")
    try:
        torch.save(state(1), path, _use_new_zipfile_serialization=checksums == "left out")
    finally:
        torch.serialization.set_crc32_options(True)
    assert is_same(read_torch(path)["model"], state(1)["model"])


def saved(folder: Path) -> Checkpoints:
    """Two checkpoints, the last with a flipped bit."""
    checkpoints = Checkpoints(folder)
    checkpoints.save(state(1))
    checkpoints.save(state(2))
    data = (folder / LAST).read_bytes()
    weights = state(2)["optimizer"]["state"][0]["momentum_buffer"].numpy().tobytes()
    (folder / LAST).write_bytes(flipped(data, 8 * data.index(weights) + 5))
    return checkpoints


def test_a_run_goes_on_from_the_checkpoint_before_a_flipped_bit(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    checkpoints = saved(tmp_path)
    with caplog.at_level(logging.WARNING, "madao"):
        found = checkpoints.load()
    assert is_same(found, state(1))
    (record,) = caplog.records
    assert str(tmp_path / PREVIOUS) in record.getMessage()


def test_who_reads_a_damaged_checkpoint_moves_no_file_and_who_saves_keeps_the_good_one(tmp_path: Path) -> None:
    checkpoints = saved(tmp_path)
    for reader in (Checkpoints(tmp_path, writes=False), checkpoints):
        before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
        assert is_same(reader.load(), state(1))
        assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
    checkpoints.save(state(3))
    assert names(tmp_path) == {LAST, PREVIOUS, DAMAGED}
    assert is_same(read_torch(tmp_path / PREVIOUS), state(1))
    checkpoints.save(state(4))
    assert is_same(read_torch(tmp_path / PREVIOUS), state(3))


def test_a_checkpoint_that_may_not_be_opened_is_not_taken_for_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(state(1))
    checkpoints.save(state(2))
    before, opened = names(tmp_path), Path.open

    def refuse(path: Path, mode: str = "r") -> Any:
        if path.name == LAST:
            raise PermissionError(13, "Permission denied", str(path))
        return opened(path, mode)

    with monkeypatch.context() as patched:
        patched.setattr(Path, "open", refuse)
        with pytest.raises(PermissionError, match=LAST):
            checkpoints.load()
    assert names(tmp_path) == before
    assert is_same(checkpoints.load(), state(2))


def save_until(folder: Path, stop: Event) -> None:
    """Save as quickly as possible, without waiting for the disk."""
    torch.set_num_threads(1)
    os.fsync = lambda fd: None
    checkpoints, step = Checkpoints(folder), 2
    while not stop.is_set():
        step += 1
        checkpoints.save({"step": step, "weight": torch.full((20_000,), float(step))})


@pytest.mark.parametrize("reads", [200, pytest.param(11_520, marks=pytest.mark.slow)])
def test_who_reads_while_a_run_saves_gets_a_whole_checkpoint(tmp_path: Path, reads: int) -> None:
    checkpoints = Checkpoints(tmp_path)
    for step in (1, 2):
        checkpoints.save({"step": step, "weight": torch.full((20_000,), float(step))})
    processes = multiprocessing.get_context("forkserver")
    processes.set_forkserver_preload(["madao.training.run.checkpoint"])
    stop = processes.Event()
    process = processes.Process(target=save_until, args=(tmp_path, stop))
    process.start()
    reader = Checkpoints(tmp_path, writes=False)
    steps: set[int] = set()
    try:
        while len(steps) < 3:  # it saves
            found = reader.load()
            assert found is not None
            steps.add(found["step"])
        for _ in range(reads):
            found = reader.load()
            assert found is not None
            assert (found["weight"] == found["step"]).all()
            steps.add(found["step"])
    finally:
        stop.set()
        process.join()
    assert process.exitcode == 0
    assert names(tmp_path) == {LAST, PREVIOUS}
