"""What a run says before it starts of a policy that can hardly learn."""

import dataclasses
import signal
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from typing import Any

import pytest
import torch

from madao.config.train_config import ModelConfig, OuterConfig
from madao.experiments import jobs
from madao.training.monitor.opening import opening, warning
from madao.training.trainer import Trainer
from tests.training.test_trainer import settings, splits


def test_few_steps_are_warned_of_with_a_remedy(tmp_path: Path) -> None:
    def said(every: int, method: str = "learned") -> str | None:
        outer = OuterConfig(every=every, warmup=0, batch_size=16)
        return warning(Trainer(settings(tmp_path / f"{every}-{method}", method, outer=outer, epochs=20), splits()))

    assert said(1) is None
    assert "in none, and will stay as it starts: raise --epochs" in str(said(1000))
    assert "which is few" in str(said(20))
    assert said(1000, "uniform") is None


def test_one_of_a_thing_and_several(tmp_path: Path) -> None:
    def last(epochs: int, batch_size: int) -> str:
        config = settings(tmp_path / "run", "base", epochs=epochs, batch_size=batch_size)
        return opening(Trainer(config, splits()))[-1]

    assert last(1, 96).endswith(": 1 epoch of 1 step")
    assert last(1200, 32).endswith(": 1,200 epochs of 3 steps")


def test_few_validation_images_are_warned_of(tmp_path: Path) -> None:
    def said(method: str, count: int) -> str:
        given = splits()
        assert given.validation is not None
        few = dataclasses.replace(given, validation=given.validation.subset(torch.arange(count) % 30))
        return "\n".join(opening(Trainer(settings(tmp_path / f"{method}-{count}", method), few)))

    assert "the policy learns from 30 validation images, which is few, and each is 3.3 points" in said("learned", 30)
    assert "validation images" not in said("learned", 60)
    assert "validation images" not in said("uniform", 30)


@pytest.mark.parametrize(
    ("model", "side", "told"),
    [("wrn-10-1", 72, "a step takes 5 × the time and memory"), ("wrn-10-1", 32, None), ("resnet18", 72, None)],
)
def test_a_network_for_small_images_is_warned_of(tmp_path: Path, model: str, side: int, told: str | None) -> None:
    config = settings(tmp_path / "run", "base", model=ModelConfig(name=model))
    line = opening(Trainer(config, splits(side=side)))[-1]
    assert line.startswith(f"{model} at {side} pixels") if told is None else told in line
    assert ("consider --data.size 32 or --model.name resnet18" in line) == (told is not None)


def test_each_of_several_trainings_is_warned_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Quiet:
        def __init__(self, *_: Any, **__: Any) -> None:
            pass

        def fit(self) -> None:
            print("trains")

    monkeypatch.setattr(jobs, "Trainer", Quiet)
    monkeypatch.setattr(jobs, "warning", lambda _: "it learns in none")
    monkeypatch.setattr(jobs, "_stop_with_parent", lambda: None)
    monkeypatch.setattr(signal, "pthread_sigmask", lambda *_: None)
    monkeypatch.setattr(jobs, "opening", lambda _: ["digits", "it learns in none"])
    channel: Connection = Pipe()[1]
    for first, said in ((True, ["digits", "it learns in none"]), (False, ["learned 0: it learns in none"])):
        jobs.train(settings(tmp_path / "run"), "learned 0", 1, channel, first)
        assert capsys.readouterr().out.splitlines() == [*said, "trains"]
