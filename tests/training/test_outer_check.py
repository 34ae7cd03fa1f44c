"""The outer step that a run tries before training."""

import copy
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from madao.config.train_config import AugmentConfig, OuterConfig, TaskConfig
from madao.errors import UserError
from madao.training.outer_check import check_outer_step
from madao.training.trainer import Trainer
from tests.helpers.reverse_only import Square
from tests.helpers.training import assert_same, built, settings, trained


class FailsInTraining(nn.Module):
    """A layer that accepts images out of training alone, as BatchNorm does for a single value per channel."""

    def forward(self, values: Tensor) -> Tensor:
        if self.training:
            raise ValueError("expected more than 1 value per channel")
        return values


TASKS = {
    "classification": TaskConfig(),
    "moco": TaskConfig("moco", dimensions=8, queue=64, bn_splits=2, neighbours=5),
}


@pytest.mark.parametrize("task", TASKS)
def test_nothing_that_training_depends_on_changes(task: str, tmp_path: Path) -> None:
    run = built(settings(tmp_path, task=TASKS[task], augment=AugmentConfig(padding=2, cutout=0)))
    assert run.outer_loop is not None
    before, random_state = copy.deepcopy(run.state_dict()), torch.get_rng_state()
    for _ in range(2):
        assert check_outer_step(run.outer_loop, run.splits.train, run.device, TASKS[task].bn_splits) == []
    assert torch.equal(torch.get_rng_state(), random_state)
    assert_same(run.state_dict(), before)


def test_a_model_that_fails_is_refused_before_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = nn.Sequential(nn.Flatten(), FailsInTraining(), nn.Linear(256, 3))
    monkeypatch.setattr("madao.training.builders.model.build_model", lambda *_: model)
    config = settings(tmp_path / "run", outer=OuterConfig(every=2, warmup=1, batch_size=16, model_mode="train"))
    run = built(config)
    with pytest.raises(UserError, match=r"`model\.name` or `data\.size`"):
        Trainer(run).fit()
    assert run.step == 0
    assert not (tmp_path / "run" / "config.yaml").exists()


def test_a_model_without_forward_mode_trains_and_is_told_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = nn.Sequential(nn.Flatten(), Square(), nn.Linear(256, 3))
    monkeypatch.setattr("madao.training.builders.model.build_model", lambda *_: model)
    run = trained(settings(tmp_path))
    assert run.outer_loop is not None
    assert run.outer_loop.outer.updates > 0
    assert sum("forward mode" in note for note in run.notes) == 1
