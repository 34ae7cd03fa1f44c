"""Advice on a run: given where it helps, silent elsewhere, and naming settings that help."""

import dataclasses
import re
from pathlib import Path
from typing import Any

import pytest
import torch

from madao.config.train_config import DataConfig, ModelConfig, OptimizerConfig, OuterConfig
from madao.data import InMemoryImages
from madao.training.monitor.advice import (
    describe_run,
    divergence_advice,
    loader_advice,
    memory_advice,
    model_advice,
    policy_advice,
)
from madao.training.monitor.profiler import timing_row
from madao.training.splits import Splits
from tests.helpers.training import built, settings, splits, trained


def test_few_outer_steps_are_told_with_a_remedy(tmp_path: Path) -> None:
    def advice(every: int, method: str = "learned") -> str | None:
        outer = OuterConfig(every=every, warmup=0, batch_size=16)
        run = built(settings(tmp_path / f"{every}-{method}", method, outer=outer, epochs=20))
        found = policy_advice(run)
        assert found is None or found in "\n".join(describe_run(run))
        return found

    assert advice(1) is None
    assert advice(1000, "uniform") is None
    assert "in none, and will stay as it starts: raise `epochs`" in str(advice(1000))
    assert "in 3, which is few" in str(advice(20))


@pytest.mark.parametrize(
    ("epochs", "batch_size", "end"), [(1, 96, ": 1 epoch of 1 step"), (1200, 32, ": 1,200 epochs of 3 steps")]
)
def test_one_step_and_several_are_counted(tmp_path: Path, epochs: int, batch_size: int, end: str) -> None:
    run = built(settings(tmp_path, "base", epochs=epochs, batch_size=batch_size))
    assert describe_run(run)[-1].endswith(end)


def test_a_resume_without_a_checkpoint_is_told(tmp_path: Path) -> None:
    config = settings(tmp_path, "base", resume=True)
    assert "a new run begins" in describe_run(built(config))[0]
    trained(dataclasses.replace(config, epochs=1))
    assert "a new run begins" not in describe_run(built(dataclasses.replace(config, epochs=1)))[0]


@pytest.mark.parametrize(
    ("method", "count", "told"), [("learned", 30, True), ("learned", 60, False), ("uniform", 30, False)]
)
def test_few_validation_images_are_told(tmp_path: Path, method: str, count: int, told: bool) -> None:
    given = splits()
    assert given.validation is not None
    few = dataclasses.replace(given, validation=given.validation.subset(torch.arange(count) % 30))
    lines = "\n".join(describe_run(built(settings(tmp_path, method), few)))
    assert ("each is 3.3 points" in lines) == told


@pytest.mark.parametrize(
    ("model", "side", "times"), [("wrn-10-1", 72, 5), ("wrn-10-1", 32, None), ("resnet18", 72, None)]
)
def test_a_network_for_small_images_is_told_with_its_cost(
    tmp_path: Path, model: str, side: int, times: int | None
) -> None:
    run = built(settings(tmp_path, "base", model=ModelConfig(name=model)), splits(side=side))
    line = describe_run(run)[-1]
    assert line.startswith(f"{model} at {side} pixels" if times is None else f"{model} is made for images of 32 pixels")
    assert times is None or f"a step takes {times} times" in line


def test_waiting_for_images_is_told_with_remedies(monkeypatch: pytest.MonkeyPatch) -> None:
    given = splits(channels=3)
    timing = timing_row(10.0, 1210.0, {"waiting_seconds": 4.3})
    assert timing["model_images_per_second"] == pytest.approx(1210 / 0.57)
    monkeypatch.setattr("os.cpu_count", lambda: 8)

    def advice(workers: int = 8, **more: Any) -> str:
        return str(loader_advice(timing, DataConfig(workers=workers, **more), given, on_gpu=True))

    assert "43 % of the time (1,210 images/s of 2,123" in advice()
    assert advice(4).endswith(
        "try `data.decode=gpu`, or more `data.workers` than 4, or a smaller `data.size`, or `data.cache_gib=0.2`, "
        "which keeps them decoded"
    )
    assert "data.workers" not in advice(8)
    assert "data.decode" not in advice(decode="gpu")
    assert "data.decode" not in str(loader_advice(timing, DataConfig(), given))


@pytest.mark.parametrize(("seconds", "waiting"), [(10.0, None), (10.0, 0.9), (10.0, 0.0), (3.0, 0.9), (1.0, 1.0)])
def test_little_waiting_is_not_told(seconds: float, waiting: float | None) -> None:
    timing = timing_row(seconds, 100.0, {"waiting_seconds": waiting})
    assert loader_advice(timing, DataConfig(), splits()) is None


def test_only_errors_of_memory_are_told_with_less_memory(tmp_path: Path) -> None:
    run = built(settings(tmp_path, batch_size=30, accumulate=3))
    assert memory_advice(RuntimeError("device-side assert triggered"), run) is None
    on_cpu = RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes")
    assert memory_advice(on_cpu, run) == "try `batch_size=15`, or `accumulate=6`, which keeps the batch"
    run.config = dataclasses.replace(run.config, batch_size=27)
    assert memory_advice(torch.OutOfMemoryError(), run) == "try `batch_size=12`"  # three parts


def named(advice: str | None) -> set[str]:
    """The settings that an advice proposes."""
    return set(re.findall(r"`([a-z_.]+)", str(advice)))


@pytest.mark.parametrize(("batch_size", "accumulate"), [(1, 1), (4, 4)])
def test_memory_for_one_image_needs_a_smaller_model_or_image(tmp_path: Path, batch_size: int, accumulate: int) -> None:
    run = built(settings(tmp_path, batch_size=batch_size, accumulate=accumulate))
    assert named(memory_advice(torch.OutOfMemoryError(), run)) == {"data.size", "model.name"}


def test_a_step_of_the_policy_on_single_images_needs_a_smaller_model_or_image(tmp_path: Path) -> None:
    run = built(settings(tmp_path, outer=OuterConfig(every=2, warmup=0, batch_size=16, microbatch=1)))
    assert run.outer_loop is not None
    run.outer_loop.at_work = True
    assert named(memory_advice(torch.OutOfMemoryError(), run)) == {"data.size", "model.name"}


@pytest.mark.parametrize(
    ("every", "batch_size", "expected"),
    [
        (2, 32, {"epochs", "outer.every", "batch_size"}),
        (2, 1, {"epochs", "outer.every"}),
        (1, 96, {"epochs", "batch_size"}),
    ],
)
def test_the_advice_on_few_outer_steps_lowers_nothing_below_one(
    tmp_path: Path, every: int, batch_size: int, expected: set[str]
) -> None:
    outer = OuterConfig(every=every, warmup=0, batch_size=16)
    data = splits()
    few = dataclasses.replace(data, train=data.train.subset(torch.arange(18))) if batch_size == 1 else data
    run = built(settings(tmp_path, outer=outer, epochs=1, batch_size=batch_size), few)
    assert named(policy_advice(run)) == expected


def test_remedies_for_divergence_are_not_those_in_use() -> None:
    assert named(divergence_advice(OptimizerConfig())) == {"out", "optimizer.lr", "optimizer.clip", "optimizer.warmup"}
    assert named(divergence_advice(OptimizerConfig(clip=0.5, warmup=2.0))) == {"out", "optimizer.lr"}


def test_more_validation_images_are_set_aside_only_where_few_are(tmp_path: Path) -> None:
    given = splits()
    assert given.validation is not None
    few = dataclasses.replace(given, validation=given.validation.subset(torch.arange(30)))
    set_aside = dataclasses.replace(few, validation_indices=torch.arange(30))

    def advice(name: str, data: Splits, fraction: float) -> str:
        config = settings(tmp_path / name)
        config = dataclasses.replace(config, data=dataclasses.replace(config.data, val_fraction=fraction))
        return "\n".join(describe_run(built(config, data)))

    assert "data.val_fraction" in named(advice("a", set_aside, 0.1))
    assert "data.val_fraction" not in named(advice("b", set_aside, 0.4))
    assert "data.val_fraction" not in named(advice("c", few, 0.1))


@pytest.mark.parametrize(("lr", "learns"), [(0.05, True), (1e-9, False)])
def test_a_loss_as_high_as_that_of_guessing_is_told_with_a_remedy(tmp_path: Path, lr: float, learns: bool) -> None:
    run = trained(settings(tmp_path, "base", optimizer=OptimizerConfig(lr=lr), epochs=12))
    advice = model_advice(run)
    assert (advice is None) == learns
    assert advice is None or "that of guessing 1.10; try `optimizer.lr=1e-10`" in advice


@pytest.mark.parametrize(
    ("rare", "smoothing", "guessed"),
    [
        # Guessing has a loss of 0.23 on 6 images of 96, where a coin has 0.69.
        (6, 0.0, {0.3: True, 0.23: True, 0.2: False}),
        # With 0.1 of the labels smoothed a perfect model has a loss of 0.20, more than guessing has without.
        (5, 0.1, {0.2: False, 0.31: True}),
    ],
)
def test_guessing_the_most_frequent_class_is_not_learning(
    tmp_path: Path, rare: int, smoothing: float, guessed: dict[float, bool]
) -> None:
    images = torch.randint(0, 256, (96, 1, 16, 16), dtype=torch.uint8)
    data = dataclasses.replace(splits(classes=2), train=InMemoryImages(images, (torch.arange(96) < rare).long()))
    run = built(settings(tmp_path, "base", optimizer=OptimizerConfig(label_smoothing=smoothing)), data)
    for loss, expected in guessed.items():
        (tmp_path / "metrics.csv").write_text(f"epoch,train_loss\n1,1.5\n2,{loss}\n")
        assert (model_advice(run) is not None) is expected
