"""A run that is killed at any moment, without warning, ends as if nothing had happened."""

import dataclasses
import multiprocessing
import random
import time
from multiprocessing.synchronize import Event
from pathlib import Path

import pytest
import torch

from madao.config.train_config import AugmentConfig, DataConfig, OuterConfig, TrainConfig
from madao.errors import MadaoError
from madao.training import trainer
from madao.training.builders.run import build_run
from tests.helpers.training import assert_same_run, final_state


def run(config: TrainConfig, started: Event) -> None:
    torch.set_num_threads(1)
    trainer.LOOK_EVERY = 4  # a checkpoint every fourth step
    fresh = trainer.Trainer(build_run(config))
    started.set()
    fresh.fit()


def saved_step(out: Path) -> int:
    """The step of the last checkpoint; -1 while it is not there (between two renames it is not)."""
    try:
        return int(final_state(out)["step"])
    except (MadaoError, OSError):
        return -1


@pytest.mark.parametrize("kills", [7, pytest.param(20, marks=pytest.mark.slow)])
def test_killed_at_random_moments_it_ends_bit_identically(tmp_path: Path, kills: int) -> None:
    config = TrainConfig(
        data=DataConfig(shift="rotate"),
        augment=AugmentConfig(padding=1, cutout=3),
        outer=OuterConfig(every=3, warmup=2, batch_size=32, train_batch_size=32),
        epochs=kills,
        batch_size=64,
        ema=0.95,
        checkpoint_minutes=0.0,
        logger="none",
        device="cpu",
        out=str(tmp_path / "whole"),
    )
    processes = multiprocessing.get_context("forkserver")
    processes.set_forkserver_preload(["madao.training.trainer", "sklearn.datasets"])

    def start(settings: TrainConfig) -> multiprocessing.process.BaseProcess:
        started = processes.Event()
        process = processes.Process(target=run, args=(settings, started))
        process.start()
        assert started.wait(60)
        return process

    whole, begin = start(config), time.monotonic()
    whole.join()
    duration = time.monotonic() - begin
    assert whole.exitcode == 0

    killed = dataclasses.replace(config, out=str(tmp_path / "killed"), resume=True)
    moments, steps = random.Random(0), set()
    last = tmp_path / "killed" / "checkpoints" / "last.pt"
    for number in range(kills):
        before = saved_step(tmp_path / "killed")
        process = start(killed)
        # Every other one has gone on for sure; the rest may be killed while they begin.
        while number % 2 and saved_step(tmp_path / "killed") <= before:
            time.sleep(0.01)
        process.join(moments.uniform(0, 0.6 * duration / kills))  # so that the last kill still finds it at work
        assert process.exitcode is None
        process.kill()
        process.join()
        if last.exists():
            steps.add(final_state(tmp_path / "killed")["step"])
    assert len(steps) >= kills // 4 + 1, "the kills should fall all over the run"
    final = start(killed)
    final.join()
    assert final.exitcode == 0
    assert_same_run(tmp_path / "whole", tmp_path / "killed")
    results = [(tmp_path / name / "result.json").read_text() for name in ("whole", "killed")]
    assert results[0].replace("whole", "killed") == results[1]
