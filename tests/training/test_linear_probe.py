"""Linear evaluation of frozen features."""

from pathlib import Path

import pytest
import torch
from sklearn.linear_model import LogisticRegression
from torch import Tensor, nn

from madao.cli import main
from madao.data import DATASETS, DatasetRequest, InMemoryImages
from madao.policy import BaseAugmentation
from madao.training.linear_probe import LinearProtocol, linear_evaluation


class Fixed(nn.Module):
    """Features that are the pixels, and something that learns no more."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(256)

    def features(self, images: Tensor) -> Tensor:
        found: Tensor = self.norm(images.flatten(1))
        return found


@pytest.mark.parametrize("augment", [False, True])
def test_a_linear_classifier_of_pixels_does_as_well_as_scikit_learns(augment: bool) -> None:
    digits = DATASETS["digits"](DatasetRequest(Path("unused")))
    train, test = digits.train, digits.test
    assert isinstance(train, InMemoryImages)
    assert isinstance(test, InMemoryImages)
    standard, encoder = BaseAugmentation(padding=0, flip=False, cutout=0, mean=(0.3,), std=(0.35,)), Fixed().train()
    before = {name: value.clone() for name, value in encoder.state_dict().items()}
    protocol = LinearProtocol(epochs=15, lr=0.1, batch_size=64, augment=augment)
    score = linear_evaluation(encoder, train, test, 10, standard, protocol)
    regression = LogisticRegression(max_iter=200).fit(train.images.flatten(1) / 255, train.labels)
    expected = 1 - regression.score(test.images.flatten(1) / 255, test.labels)
    assert score.count == 449
    assert abs(score.error - expected) < 0.025
    assert encoder.training
    assert all(torch.equal(value, before[name]) for name, value in encoder.state_dict().items())
    again = linear_evaluation(encoder, train, test, 10, standard, protocol)
    assert again == score


def test_features_of_a_run_are_far_above_chance(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = ["--task.name=moco", "--task.queue=256", "--batch_size=64", "--epochs=2", "--logger=none"]
    assert main(["train", *settings, "--device=cpu", f"--out={tmp_path / 'run'}"]) == 0
    capsys.readouterr()
    fast = ["--linear.epochs=20", "--linear.lr=1", "--linear.augment=false", "--device=cpu"]
    assert main(["evaluate", "--protocol", "linear", str(tmp_path / "run"), *fast]) == 0
    line = capsys.readouterr().out
    assert line.startswith("test linear error ")
    assert float(line.split()[3]) < 60  # chance is 90
    assert main(["train", "--epochs=1", "--logger=none", f"--out={tmp_path / 'other'}"]) == 0
    assert main(["evaluate", str(tmp_path / "other"), "--protocol=linear"]) == 2
    assert "--protocol linear needs a run of the task moco" in capsys.readouterr().err
    assert main(["evaluate", str(tmp_path / "run"), "--protocol=linear", "--linear.lr=0"]) == 2
    assert "--linear.lr must be above 0, got 0" in capsys.readouterr().err
