"""What a run says at its end of a model that has learned hardly anything."""

import dataclasses
from pathlib import Path

import pytest
import torch

from madao.config.train_config import OptimizerConfig
from madao.data import InMemoryImages
from madao.training.monitor.closing import warning
from madao.training.trainer import Trainer
from tests.training.test_trainer import settings, splits


@pytest.mark.parametrize(("lr", "learns"), [(0.05, True), (1e-9, False)])
def test_a_loss_as_high_as_that_of_guessing_is_told_with_a_remedy(tmp_path: Path, lr: float, learns: bool) -> None:
    config = settings(tmp_path / "run", "base", optimizer=OptimizerConfig(lr=lr), epochs=12)
    trainer = Trainer(config, splits())
    trainer.fit()
    said = warning(trainer)
    if learns:
        assert said is None
    else:
        assert said is not None
        assert "that of guessing 1.10; try a lower --optimizer.lr, 1e-10 say, or more steps by --epochs" in said


def test_guessing_the_most_frequent_class_is_not_learning(tmp_path: Path) -> None:
    """Of 90 images of one class and 6 of the other a loss of 0.23 is that of guessing, 0.69 of a coin."""
    images = torch.randint(0, 256, (96, 1, 16, 16), dtype=torch.uint8)
    data = dataclasses.replace(splits(classes=2), train=InMemoryImages(images, (torch.arange(96) < 6).long()))
    trainer = Trainer(settings(tmp_path / "run", "base"), data)
    trainer.directory.path.mkdir()
    for loss, guessed in ((0.3, True), (0.23, True), (0.2, False)):
        (trainer.directory.path / "metrics.csv").write_text(f"epoch,train_loss\n1,1.5\n2,{loss}\n")
        assert (warning(trainer) is not None) is guessed


def test_smoothed_labels_are_guessed_with_more_loss(tmp_path: Path) -> None:
    """With 0.1 of the labels smoothed a perfect model has a loss of 0.20, more than guessing has without."""
    images = torch.randint(0, 256, (100, 1, 16, 16), dtype=torch.uint8)
    data = dataclasses.replace(splits(classes=2), train=InMemoryImages(images, (torch.arange(100) < 5).long()))
    smoothed = OptimizerConfig(label_smoothing=0.1)
    trainer = Trainer(settings(tmp_path / "run", "base", optimizer=smoothed), data)
    trainer.directory.path.mkdir()
    for loss, guessed in ((0.2, False), (0.31, True)):
        (trainer.directory.path / "metrics.csv").write_text(f"epoch,train_loss\n1,{loss}\n")
        assert (warning(trainer) is not None) is guessed
