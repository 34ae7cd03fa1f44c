"""The loop: what it computes, what it leaves behind, and how it stops."""

import csv
import dataclasses
import json
import math
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from madao.config.train_config import (
    AugmentConfig,
    DataConfig,
    ModelConfig,
    OptimizerConfig,
    OuterConfig,
    SpeedConfig,
    TrainConfig,
)
from madao.data import InMemoryImages
from madao.errors import UserError
from madao.files import load_torch, save_torch
from madao.policy import Policy, PolicySpec
from madao.tasks import EvalResult
from madao.training.build import METHODS
from madao.training.interrupt import Interrupted
from madao.training.run.state import restore
from madao.training.splits import Splits
from madao.training.trainer import Trainer


def splits(channels: int = 1, side: int = 16, count: int = 96, classes: int = 3) -> Splits:
    generator = torch.Generator().manual_seed(0)

    def pixels(number: int) -> InMemoryImages:
        labels = torch.arange(number) % classes
        images = torch.randint(0, 256, (number, channels, side, side), generator=generator, dtype=torch.uint8)
        images[:, :, : side // 2] //= (1 + labels).reshape(-1, 1, 1, 1).to(torch.uint8)  # something to learn
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
        skipped=0,
    )


def settings(out: Path, method: str = "madao", **changes: Any) -> TrainConfig:
    config = TrainConfig(
        data=DataConfig(workers=0),
        model=ModelConfig("small-cnn"),
        augment=AugmentConfig(method=method, padding=2, cutout=4),
        optimizer=OptimizerConfig(lr=0.05),
        outer=OuterConfig(every=2, warmup=1, batch_size=16),
        epochs=3,
        batch_size=32,
        tensorboard=False,
        device="cpu",
        out=str(out),
    )
    return dataclasses.replace(config, **changes)


def final_state(out: Path) -> dict[str, Any]:
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
    assert_same(final_state(a), final_state(b))
    names = {"metrics.csv", "outer.csv", "policy.json", "trajectory.jsonl", "samples.npz"}
    present = [names & {path.name for path in run.iterdir()} for run in (a, b)]
    assert present[0] == present[1] >= {"metrics.csv"}
    for name in present[0]:
        assert (a / name).read_bytes() == (b / name).read_bytes(), name


def assert_resumes(
    monkeypatch: pytest.MonkeyPatch, folder: Path, config: Callable[[Path], TrainConfig], data: Splits
) -> None:
    """A run that is told to stop at its fifth step ends, resumed, as one that was not."""
    Trainer(config(folder / "whole"), data).fit()
    trainer = Trainer(config(folder / "parts"), data)
    step = trainer._train_step

    def interrupted(images: Tensor, labels: Tensor) -> None:
        step(images, labels)
        if trainer.step + 1 == 5:
            signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr(trainer, "_train_step", interrupted)
    with pytest.raises(Interrupted):
        trainer.fit()
    Trainer(dataclasses.replace(trainer.config, resume=True), data).fit()
    assert_same_run(folder / "whole", folder / "parts")


@pytest.mark.parametrize("method", METHODS)
def test_every_method_trains_and_leaves_a_whole_run_directory(method: str, tmp_path: Path) -> None:
    data = splits(channels=3)
    result = Trainer(settings(tmp_path / "run", method), data).fit()
    assert result.test_error is not None
    assert 0 <= result.test_error <= 1
    names = {path.name for path in (tmp_path / "run").iterdir()}
    assert {"config.yaml", "environment.json", "split.json", "metrics.csv", "timing.csv", "result.json"} <= names
    assert ("outer.csv" in names) == (method == "madao")
    assert "samples.npz" in names
    assert {path.name for path in (tmp_path / "run" / "checkpoints").iterdir()} == {"last.pt", "best.pt"}
    rows = list(csv.DictReader((tmp_path / "run" / "metrics.csv").read_text().splitlines()))
    assert [int(row["step"]) for row in rows] == [3, 6, 9]
    assert ("trajectory.jsonl" in names) == (method == "madao")


def test_a_saved_policy_is_a_method(tmp_path: Path) -> None:
    Policy().spec().save(tmp_path / "mine.json")
    Trainer(settings(tmp_path / "run", str(tmp_path / "mine.json")), splits()).fit()
    assert PolicySpec.load(tmp_path / "run" / "policy.json") == PolicySpec.load(tmp_path / "mine.json")


def test_it_is_plain_sgd_on_standard_augmentation(tmp_path: Path) -> None:
    """The slow, obvious loop beside it."""
    config = settings(tmp_path / "run", "standard", epochs=2, accumulate=1)
    data = splits()
    trainer = Trainer(config, data)
    twin = Trainer(dataclasses.replace(config, out=str(tmp_path / "twin")), data)
    trainer.fit()
    model, standard = twin.network, twin.standard
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4)
    step = 0
    for epoch in range(2):
        for images, labels in twin.train_batches.epoch(epoch):
            for group in optimizer.param_groups:
                group["lr"] = 0.05 * (1 + math.cos(math.pi * step / 6)) / 2
            loss = torch.nn.functional.cross_entropy(model.train()(standard(images)), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
    assert_same(dict(trainer.network.state_dict()), dict(model.state_dict()))


def test_the_policy_learns_after_warm_up_and_not_before(tmp_path: Path) -> None:
    outer = OuterConfig(every=2, warmup=2, warmup_augment="none")
    trainer = Trainer(settings(tmp_path / "run", epochs=4, outer=outer), splits())
    assert trainer.learning is not None
    assert [trainer.learning.applies(step) for step in (0, 5, 6)] == [False, False, True]
    trainer.fit()
    lines = [json.loads(line) for line in (tmp_path / "run" / "trajectory.jsonl").read_text().splitlines()]
    assert lines[0]["operations"][4] == "Rotate"
    selections = {line["epoch"]: line["selection"] for line in lines[1:]}
    assert selections[0] == selections[1] == selections[2]
    assert selections[2] != selections[3] != selections[4]
    assert trainer.learning.outer.updates == 3


def test_warm_up_with_the_policy_is_the_appendix(tmp_path: Path) -> None:
    outer = OuterConfig(every=2, warmup=2)
    trainer = Trainer(settings(tmp_path / "run", outer=outer), splits())
    assert trainer.learning is not None
    assert trainer.learning.applies(0)


@pytest.mark.parametrize(
    ("estimator", "solver"), [("relaxed", "neumann"), ("influence", "identity"), ("influence", "deflated")]
)
def test_other_estimators(estimator: Any, solver: Any, tmp_path: Path) -> None:
    outer = OuterConfig(estimator=estimator, solver=solver, every=2, warmup=1, scale=1e-3, train_batch_size=16)
    trainer = Trainer(settings(tmp_path / "run", outer=outer), splits())
    trainer.fit()
    assert trainer.learning is not None
    assert trainer.learning.outer.updates == 3


def test_what_the_weights_see_the_policy_does_not(tmp_path: Path) -> None:
    """The test set has no part in training: another one changes nothing but the result."""
    data = splits()
    assert data.test is not None
    blank = dataclasses.replace(data, test=InMemoryImages(torch.zeros_like(data.train.images[:30]), data.test.labels))  # type: ignore[attr-defined]
    results = [Trainer(settings(tmp_path / name), each).fit() for name, each in (("a", data), ("b", blank))]
    assert_same_run(tmp_path / "a", tmp_path / "b")
    assert results[0].validation_error == results[1].validation_error


def test_accumulation_sums_to_the_batch(tmp_path: Path) -> None:
    """Without BatchNorm, which sees the parts, the gradient is that of the whole batch."""
    model = ModelConfig("timm/test_vit")
    pytest.importorskip("timm")
    data, weights = splits(channels=3, side=32), []
    for parts in (1, 4):
        config = settings(tmp_path / str(parts), "standard", epochs=1, accumulate=parts, model=model)
        trainer = Trainer(config, data)
        trainer.fit()
        weights.append(torch.cat([p.detach().flatten() for p in trainer.network.parameters()]))
    torch.testing.assert_close(weights[0], weights[1], rtol=1e-4, atol=1e-5)


def test_the_average_is_evaluated_and_saved(tmp_path: Path) -> None:
    trainer = Trainer(settings(tmp_path / "run", ema=0.9), splits())
    trainer.fit()
    assert trainer.average is not None
    best = load_torch(trainer.directory.best)
    assert not torch.equal(best["model"]["head.weight"], trainer.network.state_dict()["head.weight"])
    assert trainer.average.steps == 9


def test_the_best_checkpoint_is_the_one_of_the_lowest_validation_error(tmp_path: Path) -> None:
    trainer = Trainer(settings(tmp_path / "run", epochs=6, eval_checkpoint="best"), splits())
    result = trainer.fit()
    rows = trainer.directory.read_metrics()
    errors = [float(row["validation_error"]) for row in rows]
    assert result.validation_error == min(errors)
    assert result.epoch == 1 + errors.index(min(errors))
    assert load_torch(trainer.directory.best)["epoch"] == result.epoch


def test_cudnn_times_convolutions_where_that_is_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", False)
    for wanted in (True, False):
        Trainer(settings(tmp_path / str(wanted), speed=SpeedConfig(benchmark=wanted)), splits())
        assert torch.backends.cudnn.benchmark == wanted


def test_half_precision_trains(tmp_path: Path) -> None:
    result = Trainer(settings(tmp_path / "run", precision="bf16"), splits()).fit()
    assert result.test_error is not None


@pytest.mark.parametrize("method", ["madao", "randaugment"])
@pytest.mark.parametrize("stop_at", [1, 3, 5, 8])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_between_steps_and_resuming_goes_on_bit_for_bit(
    method: str,
    stop_at: int,
    number: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    data = splits()
    Trainer(settings(tmp_path / "whole", method, ema=0.9), data).fit()
    config = settings(tmp_path / "parts", method, ema=0.9)
    trainer = Trainer(config, data)
    step = trainer._train_step

    def interrupted(images: Tensor, labels: Tensor) -> None:
        step(images, labels)
        if trainer.step + 1 == stop_at:
            signal.raise_signal(number)

    monkeypatch.setattr(trainer, "_train_step", interrupted)
    with pytest.raises(Interrupted, match=f"stopped at step {stop_at}, .* --resume") as caught:
        trainer.fit()
    assert caught.value.exit_code == 128 + number
    torch.manual_seed(1234)  # whatever the new process starts with
    assert "goes on" not in capsys.readouterr().out
    Trainer(dataclasses.replace(config, resume=True), data).fit()
    first = capsys.readouterr().out.splitlines()[0]
    assert first == f"parts: goes on after epoch {(stop_at - 1) // 3} of 3, at step {stop_at} of 9"
    assert_same_run(tmp_path / "whole", tmp_path / "parts")


@pytest.mark.parametrize("saved", [True, False])
def test_an_epoch_in_parts_takes_the_time_of_all_of_them(
    saved: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three steps of 0.1 s and more, each an outer step, stopped after the first and after the second."""
    data, outer = splits(), OuterConfig(every=1, warmup=0, batch_size=16)
    config = settings(tmp_path / "run", epochs=1, outer=outer)
    for part in range(3):
        trainer = Trainer(dataclasses.replace(config, resume=part > 0), data)
        assert trainer.learning is not None
        step = trainer.learning.step

        def slow(*arguments: Any, step: Any = step, trainer: Trainer = trainer) -> None:
            time.sleep(0.1)
            step(*arguments)
            if trainer.step < 2:
                signal.raise_signal(signal.SIGTERM)

        monkeypatch.setattr(trainer.learning, "step", slow)
        if part == 2:
            trainer.fit()
            break
        with pytest.raises(Interrupted):
            trainer.fit()
        if not saved:  # as checkpoints were before
            state = final_state(tmp_path / "run")
            del state["meter"]
            save_torch(tmp_path / "run" / "checkpoints" / "last.pt", state)
    (row,) = csv.DictReader((tmp_path / "run" / "timing.csv").read_text().splitlines())
    seconds, outer_seconds, rate = (float(row[name]) for name in ("seconds", "outer_seconds", "images_per_second"))
    parts, images = (3, 96) if saved else (1, 32)
    assert 0.1 * parts < outer_seconds < seconds < 0.1 * parts + 1
    assert rate == pytest.approx(images / seconds, rel=0.01)


def test_resuming_a_finished_run_shows_its_result_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data, config = splits(), settings(tmp_path / "run")
    result = Trainer(config, data).fit()
    before = (tmp_path / "run" / "checkpoints" / "last.pt").read_bytes()
    assert "finished" not in capsys.readouterr().out
    assert Trainer(dataclasses.replace(config, resume=True), data).fit() == result
    assert capsys.readouterr().out == "run: finished before, after epoch 3 of 3: nothing is left to train\n"
    assert (tmp_path / "run" / "checkpoints" / "last.pt").read_bytes() == before


def killed_at_the_end(config: TrainConfig, data: Splits, monkeypatch: pytest.MonkeyPatch) -> None:
    """Train, but for the look at the test set."""

    def killed(trainer: Trainer) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(Trainer, "_finish", killed)
        with pytest.raises(KeyboardInterrupt):
            Trainer(config, data).fit()


def test_a_run_that_has_ended_keeps_only_what_is_needed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The one checkpoint before it, and gradients of outer steps, are for steps that do not come any more."""
    remembered, save = [], Trainer._save

    def noted(trainer: Trainer) -> None:
        save(trainer)
        remembered.append(final_state(tmp_path / "run")["learning"]["recent"] is not None)

    data, config = splits(), settings(tmp_path / "run")
    monkeypatch.setattr(Trainer, "_save", noted)
    killed_at_the_end(config, data, monkeypatch)
    assert remembered == [False, True, False]  # the first epoch is warm-up
    previous = tmp_path / "run" / "checkpoints" / "previous.pt"
    assert previous.exists()
    Trainer(dataclasses.replace(config, resume=True), data).fit()
    assert not previous.exists()


def test_a_truncated_checkpoint_falls_back_to_the_previous_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    data, config = splits(), settings(tmp_path / "run")
    Trainer(settings(tmp_path / "whole"), data).fit()
    killed_at_the_end(config, data, monkeypatch)
    last = tmp_path / "run" / "checkpoints" / "last.pt"
    last.write_bytes(last.read_bytes()[:-1000])
    Trainer(dataclasses.replace(config, resume=True), data).fit()
    assert "going on from the one before it" in caplog.text
    assert_same_run(tmp_path / "whole", tmp_path / "run")


def test_a_loss_that_is_not_finite_stops_the_run_and_keeps_the_last_good_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = Trainer(settings(tmp_path / "run"), splits())
    loss = trainer.task.loss
    monkeypatch.setattr(trainer.task, "loss", lambda *a: loss(*a) * (math.nan if trainer.step == 4 else 1))
    with pytest.raises(UserError, match=r"not finite at step 5 \(epoch 2\), the checkpoint of step 3 is kept; start"):
        trainer.fit()
    assert final_state(tmp_path / "run")["step"] == 3
    assert all(torch.isfinite(value).all() for value in final_state(tmp_path / "run")["model"].values())


def test_out_of_memory_suggests_a_batch_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = Trainer(settings(tmp_path / "run"), splits())

    def exhausted(*_: Any) -> Tensor:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")

    monkeypatch.setattr(trainer.task, "loss", exhausted)
    with pytest.raises(UserError, match="out of memory at step 1; try --batch_size 16, or --accumulate 2"):
        trainer.fit()


def test_out_of_memory_in_the_outer_step_suggests_a_microbatch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = Trainer(settings(tmp_path / "run"), splits())
    assert trainer.learning is not None

    def exhausted(*_: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")

    monkeypatch.setattr(trainer.learning.outer, "_estimate", exhausted)
    with pytest.raises(UserError, match=r"out of memory at step 4; the policy's step .* --outer.microbatch 16"):
        trainer.fit()


def test_a_run_is_not_resumed_on_other_images(tmp_path: Path) -> None:
    config = settings(tmp_path / "run")
    Trainer(config, splits()).fit()
    with pytest.raises(UserError, match=r"are not those .* began with: train was 96 and is 128; bring them back"):
        Trainer(dataclasses.replace(config, resume=True), splits(count=128)).fit()


def test_killed_between_the_row_of_an_epoch_and_its_checkpoint_the_row_comes_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = splits()
    Trainer(settings(tmp_path / "whole", checkpoint_minutes=0.0), data).fit()
    config = settings(tmp_path / "run", checkpoint_minutes=0.0)
    trainer = Trainer(config, data)

    def killed() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(trainer.totals, "clear", killed)
    with pytest.raises(KeyboardInterrupt):
        trainer.fit()
    Trainer(dataclasses.replace(config, resume=True), data).fit()
    assert_same_run(tmp_path / "whole", tmp_path / "run")


def test_checkpoints_may_be_epochs_apart_but_what_is_best_has_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    errors = (0.5, 0.6, 0.7, 0.4, 0.8, 0.9, 0.9)
    monkeypatch.setattr(Trainer, "_score", lambda self, images: EvalResult(1.0, errors[self.epoch - 1], 8))
    data, saved, save = splits(), [], Trainer._save
    Trainer(settings(tmp_path / "whole", epochs=7), data).fit()
    config = settings(tmp_path / "run", epochs=7, checkpoint_every=3)

    def noted(trainer: Trainer) -> None:
        saved.append(trainer.epoch)
        save(trainer)

    with monkeypatch.context() as patched:
        patched.setattr(Trainer, "_save", noted)
        killed_at_the_end(config, data, patched)
    assert saved == [1, 3, 4, 6, 7]
    assert torch.load(tmp_path / "run/checkpoints/best.pt", weights_only=True)["epoch"] == 4
    (tmp_path / "run/checkpoints/last.pt").unlink()  # as if killed in the last epoch
    Trainer(dataclasses.replace(config, resume=True), data).fit()
    assert_same_run(tmp_path / "whole", tmp_path / "run")


def test_weights_that_are_not_finite_are_not_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = Trainer(settings(tmp_path / "run"), splits())
    end = trainer._end_epoch

    def poisoned() -> None:
        if trainer.step == 6:
            next(trainer.network.parameters()).data.fill_(math.nan)
        end()

    monkeypatch.setattr(trainer, "_end_epoch", poisoned)
    with pytest.raises(UserError, match="the weights are not finite after step 6"):
        trainer.fit()
    assert final_state(tmp_path / "run")["step"] == 3


def test_events_can_be_read_by_tensorboard(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    Trainer(settings(tmp_path / "run", tensorboard=True), splits()).fit()
    events = EventAccumulator(str(tmp_path / "run" / "tensorboard"))
    events.Reload()
    assert {"train_loss", "validation_error", "selection/Rotate", "hypergradient/q_norm"} <= set(
        events.Tags()["scalars"]
    )
    assert [event.step for event in events.Scalars("train_loss")] == [3, 6, 9]


def test_a_run_begun_on_a_gpu_goes_on_without_its_optimizer(tmp_path: Path) -> None:
    config = settings(tmp_path / "run")
    Trainer(config, splits()).fit()
    state = final_state(tmp_path / "run")
    for group in state["optimizer"]["param_groups"]:
        group["fused"], group["lr"] = True, torch.tensor(0.1)
    again = Trainer(dataclasses.replace(config, resume=True), splits())
    restore(again, state)
    assert again.optimizer.param_groups[0]["fused"] is False
    images, labels = next(again.train_batches.epoch(0))
    again._train_step(images, labels)
    assert isinstance(again.optimizer.param_groups[0]["lr"], float)
