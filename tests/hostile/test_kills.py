"""A process that is killed while it saves leaves a whole checkpoint, and files without parts."""

import multiprocessing
import os
import random
from multiprocessing.connection import Connection
from pathlib import Path

import pytest
import torch

from madao.files import replacing
from madao.training.run.checkpoint import LAST, PREVIOUS, Checkpoints

_LEFT = {"arriving.pt", "arriving.pt.part", "policy.json.part"}


def save_for_ever(folder: Path, told: Connection) -> None:
    """Save the next step as quickly as possible, and tell each that is saved."""
    torch.set_num_threads(1)
    os.fsync = lambda fd: None  # a killed process loses nothing that it has written
    checkpoints = Checkpoints(folder)
    found = checkpoints.load()
    step = 0 if found is None else int(found["step"])
    while True:
        step += 1
        checkpoints.save({"step": step, "weight": torch.full((30_000,), float(step))})
        with replacing(folder / "policy.json") as file:
            file.write(str(step).encode() * 10_000)
        told.send(step)


@pytest.mark.parametrize("kills", [8, pytest.param(300, marks=pytest.mark.slow)])
def test_killed_while_it_saves_a_run_has_a_whole_checkpoint(tmp_path: Path, kills: int) -> None:
    processes = multiprocessing.get_context("forkserver")
    processes.set_forkserver_preload(["madao.training.run.checkpoint"])
    moments = random.Random(0)
    step = 0
    for _ in range(kills):
        heard, told = processes.Pipe(duplex=False)
        process = processes.Process(target=save_for_ever, args=(tmp_path, told))
        process.start()
        told.close()
        assert heard.poll(60)
        process.join(moments.uniform(0, 0.02))
        assert process.exitcode is None
        process.kill()
        process.join()
        while heard.poll():
            try:
                step = heard.recv()
            except EOFError:
                break
        found = Checkpoints(tmp_path).load()
        assert found is not None
        assert found["step"] in (step, step + 1)
        assert (found["weight"] == found["step"]).all()
        text = (tmp_path / "policy.json").read_text()
        assert text in {str(each) * 10_000 for each in (step, step + 1)}
        assert {path.name for path in tmp_path.iterdir()} <= {LAST, PREVIOUS, "policy.json"} | _LEFT
    assert step > kills
