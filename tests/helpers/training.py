"""Small runs: images, settings, trainers that stop, and comparisons of what runs leave behind."""

import dataclasses
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from madao.config.train_config import AugmentConfig, DataConfig, ModelConfig, OptimizerConfig, OuterConfig, TrainConfig
from madao.data import InMemoryImages
from madao.files import load_torch
from madao.training.builders.run import build_run
from madao.training.interrupt import Interrupted
from madao.training.run.result import Result
from madao.training.run.state import Run
from madao.training.splits import Splits
from madao.training.trainer import Trainer


def splits(channels: int = 1, side: int = 16, count: int = 96, classes: int = 3) -> Splits:
    """Random images whose upper half tells the class."""
    generator = torch.Generator().manual_seed(0)

    def pixels(number: int) -> InMemoryImages:
        labels = torch.arange(number) % classes
        images = torch.randint(0, 256, (number, channels, side, side), generator=generator, dtype=torch.uint8)
        images[:, :, : side // 2] //= (1 + labels).reshape(-1, 1, 1, 1).to(torch.uint8)
        return InMemoryImages(images, labels)

    return Splits(
        name="generated",
        classes=tuple("abcdefgh"[:classes]),
        train=pixels(count),
        validation=pixels(30),
        test=pixels(30),
        flip=False,
        size=side,
        mean=(0.5,) * channels,
        std=(0.25,) * channels,
        validation_indices=None,
    )


def settings(out: Path, method: str = "learned", **changes: Any) -> TrainConfig:
    """Three epochs of three steps on the CPU; the policy learns from the second epoch on."""
    config = TrainConfig(
        data=DataConfig(workers=0),
        model=ModelConfig("small-cnn"),
        augment=AugmentConfig(method=method, padding=2, cutout=4),
        optimizer=OptimizerConfig(lr=0.05),
        outer=OuterConfig(budget=0.0, every=2, warmup=1, batch_size=16),
        epochs=3,
        batch_size=32,
        logger="none",
        device="cpu",
        out=str(out),
    )
    return dataclasses.replace(config, **changes)


def built(config: TrainConfig, data: Splits | None = None) -> Run:
    """A run on images that are already loaded."""
    return build_run(config, splits() if data is None else data)


def trained(config: TrainConfig, data: Splits | None = None) -> Run:
    """A run that has ended."""
    run = built(config, data)
    Trainer(run).fit()
    return run


def resumed(config: TrainConfig, data: Splits | None = None) -> Result:
    """The result of a run that goes on."""
    return Trainer(built(dataclasses.replace(config, resume=True), data)).fit()


class StoppingTrainer(Trainer):
    """A trainer that gets a signal in one of its steps."""

    def __init__(self, run: Run, at: int, number: int = signal.SIGTERM) -> None:
        super().__init__(run)
        self.at, self.number = at, number

    def train_step(self, images: Tensor, targets: Tensor) -> None:
        """Train; then get the signal, if it is time."""
        super().train_step(images, targets)
        if self.run.step + 1 == self.at:
            signal.raise_signal(self.number)


class KilledTrainer(Trainer):
    """A trainer that is killed before it evaluates on the test set."""

    def fit(self) -> Result | None:  # type: ignore[override]
        """Train, but for the end."""
        with pytest.raises(KeyboardInterrupt):
            super().fit()
        return None

    def finish(self) -> Result:
        """Be killed."""
        raise KeyboardInterrupt


def final_state(out: Path) -> dict[str, Any]:
    """The last checkpoint of a run."""
    state: dict[str, Any] = load_torch(out / "checkpoints" / "last.pt")
    return state


def assert_same(a: Any, b: Any, where: str = "") -> None:
    """Equal to the last bit."""
    assert type(a) is type(b), where
    if isinstance(a, Tensor):
        assert torch.equal(a, b), where
    elif isinstance(a, dict):
        assert a.keys() == b.keys(), where
        for key in a:
            assert_same(a[key], b[key], f"{where}.{key}")
    elif isinstance(a, list | tuple):
        assert len(a) == len(b), where
        for index, (x, y) in enumerate(zip(a, b, strict=True)):
            assert_same(x, y, f"{where}[{index}]")
    else:
        assert a == b, where


def assert_same_run(a: Path, b: Path) -> None:
    """The same last checkpoint, and the same files but for those with times."""
    assert_same(final_state(a), final_state(b))
    names = {"metrics.csv", "outer.csv", "policy.json", "trajectory.jsonl", "samples.npz"}
    present = [names & {path.name for path in run.iterdir()} for run in (a, b)]
    assert present[0] == present[1] >= {"metrics.csv"}
    for name in present[0]:
        assert (a / name).read_bytes() == (b / name).read_bytes(), name


def assert_resumes(folder: Path, config: Callable[[Path], TrainConfig], at: int = 5) -> None:
    """A run that gets SIGTERM in its fifth step ends, resumed, as one that does not."""
    trained(config(folder / "whole"))
    parts = config(folder / "parts")
    with pytest.raises(Interrupted):
        StoppingTrainer(built(parts), at).fit()
    resumed(parts)
    assert_same_run(folder / "whole", folder / "parts")
