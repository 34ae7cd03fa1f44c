"""What the trainer lets the policy learn, and at which weights."""

import dataclasses
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from madao.policy import Policy
from madao.training.config import OuterConfig
from madao.training.interrupt import Interrupted
from madao.training.trainer import Trainer
from tests.training.test_trainer import assert_same_run, settings, splits


def test_the_selection_alone_may_learn(tmp_path: Path) -> None:
    outer = OuterConfig(every=2, warmup=0, batch_size=16, learn="selection")
    trainer = Trainer(settings(tmp_path / "run", outer=outer), splits())
    trainer.fit()
    assert isinstance(trainer.policy, Policy)
    assert (trainer.policy.selection - 1 / 14).abs().max() > 1e-3
    assert (trainer.policy.application_logits == 0.5).all()
    assert (trainer.policy.magnitude_logits == 0.5).all()


def test_outer_steps_at_averaged_weights(tmp_path: Path) -> None:
    outer = OuterConfig(every=2, warmup=0, batch_size=16, average=0.75)
    trainer = Trainer(settings(tmp_path / "run", outer=outer), splits())
    assert trainer.learning is not None
    learning = trainer.learning
    expected: list[Tensor] = []
    seen: list[Tensor] = []
    assert learning.average is not None
    estimate = learning.outer._estimate

    def spied(*arguments: Any) -> Any:
        here = torch.cat([p.detach().flatten() for p in trainer.network.parameters()])
        expected.append(here if not expected else 0.75 * expected[-1] + 0.25 * here)
        seen.append(torch.cat([p.detach().flatten() for p in learning.outer.model.parameters()]))
        return estimate(*arguments)

    learning.outer._estimate = spied
    trainer.fit()
    assert len(seen) == 4
    torch.testing.assert_close(torch.stack(seen), torch.stack(expected), rtol=1e-5, atol=1e-6)
    assert not torch.allclose(seen[-1], torch.cat([p.detach().flatten() for p in trainer.network.parameters()]))


def test_the_average_goes_on_from_a_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data, outer = splits(), OuterConfig(every=2, warmup=0, batch_size=16, average=0.75)
    Trainer(settings(tmp_path / "whole", outer=outer), data).fit()
    config = settings(tmp_path / "parts", outer=outer)
    trainer = Trainer(config, data)
    step = trainer._train_step

    def interrupted(images: Tensor, labels: Tensor) -> None:
        step(images, labels)
        if trainer.step + 1 == 5:
            signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr(trainer, "_train_step", interrupted)
    with pytest.raises(Interrupted):
        trainer.fit()
    Trainer(dataclasses.replace(config, resume=True), data).fit()
    assert_same_run(tmp_path / "whole", tmp_path / "parts")


def test_a_random_sign_is_a_fair_coin_that_a_resumed_run_throws_alike(tmp_path: Path) -> None:
    outer = OuterConfig(every=2, warmup=0, batch_size=16, sign="random", lr=0.5)

    def signs(seed: int) -> list[float]:
        config = dataclasses.replace(settings(tmp_path / str(seed), outer=outer), seed=seed)
        learning = Trainer(config, splits()).learning
        assert learning is not None
        logits = learning.outer.policy.selection_logits
        found = []
        for learning.outer.updates in range(200):
            before = logits.detach().clone()
            logits.grad = torch.ones_like(logits)
            learning.optimizer.step()
            found.append(float((before - logits.detach()).sign().mean()))
        return found

    first = signs(0)
    assert {*first} == {-1.0, 1.0}
    assert abs(sum(first)) < 4 * 200**0.5
    assert signs(0) == first
    assert signs(1) != first
