"""The training loop: the numbers it computes, the files it leaves behind, and how it stops and goes on."""

import csv
import dataclasses
import json
import math
import signal
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from madao.config.train_config import ModelConfig, OuterConfig, SpeedConfig
from madao.data import Images, InMemoryImages
from madao.errors import UserError
from madao.files import load_torch, save_torch
from madao.policy import Policy, PolicySpec
from madao.tasks import EvalResult
from madao.training import trainer
from madao.training.builders.policy import METHODS
from madao.training.interrupt import Interrupted
from madao.training.run.state import Run
from madao.training.trainer import Trainer
from tests.helpers.training import (
    KilledTrainer,
    StoppingTrainer,
    assert_same,
    assert_same_run,
    built,
    final_state,
    resumed,
    settings,
    splits,
    trained,
)


@pytest.mark.parametrize("method", METHODS)
def test_every_method_trains_and_leaves_a_whole_run_directory(method: str, tmp_path: Path) -> None:
    result = Trainer(built(settings(tmp_path, method), splits(channels=3))).fit()
    assert result.test_error is not None
    assert 0 <= result.test_error <= 1
    names = {path.name for path in tmp_path.iterdir()}
    common = {"config.yaml", "environment.json", "split.json", "metrics.csv", "timing.csv", "samples.npz", "lock"}
    learned = {"outer.csv", "trajectory.jsonl"} if method == METHODS[0] else set()
    assert names - {"policy.json"} == common | learned | {"result.json", "checkpoints"}
    assert {path.name for path in (tmp_path / "checkpoints").iterdir()} == {"last.pt", "best.pt"}
    rows = list(csv.DictReader((tmp_path / "metrics.csv").read_text().splitlines()))
    assert [int(row["step"]) for row in rows] == [3, 6, 9]


def test_a_saved_policy_is_a_method(tmp_path: Path) -> None:
    Policy().spec().save(tmp_path / "mine.json")
    trained(settings(tmp_path / "run", str(tmp_path / "mine.json"), epochs=1))
    assert PolicySpec.load(tmp_path / "run" / "policy.json") == PolicySpec.load(tmp_path / "mine.json")


def test_the_base_method_is_plain_sgd_on_base_augmentation(tmp_path: Path) -> None:
    """The slow, obvious loop beside it."""
    config = settings(tmp_path / "run", "base", epochs=2)
    run, twin = trained(config), built(dataclasses.replace(config, out=str(tmp_path / "twin")))
    model = twin.network
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4)
    step = 0
    for epoch in range(2):
        for images, labels in twin.train_batches.epoch(epoch):
            for group in optimizer.param_groups:
                group["lr"] = 0.05 * (1 + math.cos(math.pi * step / 6)) / 2
            loss = torch.nn.functional.cross_entropy(model.train()(twin.base_augmentation(images)), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
    assert_same(dict(run.network.state_dict()), dict(model.state_dict()))


def test_the_policy_learns_after_warm_up_and_not_before(tmp_path: Path) -> None:
    run = built(settings(tmp_path, epochs=4, outer=OuterConfig(budget=0.0, every=2, warmup=2, warmup_augment="none")))
    assert run.outer_loop is not None
    assert [run.outer_loop.applies(step) for step in (0, 5, 6)] == [False, False, True]
    Trainer(run).fit()
    lines = [json.loads(line) for line in (tmp_path / "trajectory.jsonl").read_text().splitlines()]
    assert lines[0]["operations"][4] == "Rotate"
    selections = {line["epoch"]: line["selection"] for line in lines[1:]}
    assert selections[0] == selections[1] == selections[2]
    assert selections[2] != selections[3] != selections[4]
    assert run.outer_loop.outer.updates == 3


def test_the_policy_acts_during_warm_up_by_default(tmp_path: Path) -> None:
    run = built(settings(tmp_path))
    assert run.outer_loop is not None
    assert run.outer_loop.applies(0)


@pytest.mark.parametrize(
    ("estimator", "solver"), [("relaxed", "neumann"), ("influence", "identity"), ("influence", "deflated")]
)
def test_every_estimator_updates_the_policy(estimator: Any, solver: Any, tmp_path: Path) -> None:
    outer = OuterConfig(estimator=estimator, solver=solver, every=2, warmup=1, scale=1e-3, train_batch_size=16)
    run = trained(settings(tmp_path, outer=outer))
    assert run.outer_loop is not None
    assert run.outer_loop.outer.updates == 3


def test_the_test_set_has_no_part_in_training(tmp_path: Path) -> None:
    data = splits()
    assert isinstance(data.train, InMemoryImages)
    assert data.test is not None
    blank = dataclasses.replace(data, test=InMemoryImages(torch.zeros_like(data.train.images[:30]), data.test.labels))
    results = [Trainer(built(settings(tmp_path / name), each)).fit() for name, each in (("a", data), ("b", blank))]
    assert_same_run(tmp_path / "a", tmp_path / "b")
    assert results[0].validation_error == results[1].validation_error


def test_parts_of_a_batch_have_the_gradient_of_the_batch(tmp_path: Path) -> None:
    """For a model without BatchNorm, which sees the parts."""
    pytest.importorskip("timm")
    data, weights = splits(channels=3, side=32), []
    for parts in (1, 4):
        model = ModelConfig("timm/test_vit")
        run = trained(settings(tmp_path / str(parts), "base", epochs=1, accumulate=parts, model=model), data)
        weights.append(torch.cat([p.detach().flatten() for p in run.network.parameters()]))
    torch.testing.assert_close(weights[0], weights[1], rtol=1e-4, atol=1e-5)


def test_the_average_of_the_weights_is_evaluated_and_saved(tmp_path: Path) -> None:
    run = trained(settings(tmp_path, ema=0.9))
    assert run.ema is not None
    assert run.ema.steps == 9
    assert run.evaluated is run.ema.module
    best = load_torch(run.directory.best)
    assert not torch.equal(best["model"]["head.weight"], run.network.state_dict()["head.weight"])


def test_the_best_checkpoint_is_the_one_of_the_lowest_validation_error(tmp_path: Path) -> None:
    run = built(settings(tmp_path, epochs=6, eval_checkpoint="best"))
    result = Trainer(run).fit()
    errors = [float(row["validation_error"]) for row in run.directory.read_metrics()]
    assert result.validation_error == min(errors)
    assert result.epoch == 1 + errors.index(min(errors)) == load_torch(run.directory.best)["epoch"]


def test_cudnn_times_convolutions_only_where_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", False)
    for wanted in (True, False):
        built(settings(tmp_path / str(wanted), speed=SpeedConfig(benchmark=wanted)))
        assert torch.backends.cudnn.benchmark == wanted


def test_half_precision_trains(tmp_path: Path) -> None:
    run = trained(settings(tmp_path, precision="bf16", epochs=1))
    assert run.autocast == torch.bfloat16


@pytest.mark.parametrize(
    ("method", "stop_at", "number"),
    [
        *(("learned", stop_at, signal.SIGTERM) for stop_at in (1, 3, 5, 8)),
        ("learned", 5, signal.SIGINT),
        ("randaugment", 3, signal.SIGINT),
        ("randaugment", 8, signal.SIGTERM),
    ],
)
def test_a_signal_stops_between_steps_and_resuming_goes_on_bit_for_bit(
    method: str, stop_at: int, number: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trained(settings(tmp_path / "whole", method, ema=0.9))
    config = settings(tmp_path / "parts", method, ema=0.9)
    with pytest.raises(Interrupted, match=f"step {stop_at}") as caught:
        StoppingTrainer(built(config), stop_at, number).fit()
    assert caught.value.exit_code == 128 + number
    torch.manual_seed(1234)  # a new process begins anywhere
    assert "goes on" not in capsys.readouterr().out
    resumed(config)
    first, *_ = capsys.readouterr().out.splitlines()
    assert first == f"parts: goes on after epoch {(stop_at - 1) // 3} of 3, at step {stop_at} of 9"
    assert_same_run(tmp_path / "whole", tmp_path / "parts")


class SlowOuterSteps(StoppingTrainer):
    """Stops at each of the first two steps; each outer step takes 0.1 s more."""

    def __init__(self, run: Run) -> None:
        super().__init__(run, at=-1)
        assert run.outer_loop is not None
        run.outer_loop.outer.optimizer.register_step_pre_hook(self.slow_down)

    def slow_down(self, *_: Any) -> None:
        time.sleep(0.1)
        self.at = self.run.step + 1 if self.run.step < 2 else -1


@pytest.mark.parametrize("saved", [True, False])
def test_an_epoch_in_parts_takes_the_time_of_all_of_them(saved: bool, tmp_path: Path) -> None:
    """Three steps, each an outer step, stopped after the first and after the second."""
    config = settings(tmp_path, epochs=1, outer=OuterConfig(budget=0.0, every=1, warmup=0, batch_size=16))
    for part in range(3):
        trainer = SlowOuterSteps(built(dataclasses.replace(config, resume=part > 0)))
        if part == 2:
            trainer.fit()
            break
        with pytest.raises(Interrupted):
            trainer.fit()
        if not saved:  # as in checkpoints of old versions
            state = final_state(tmp_path)
            del state["meter"]
            save_torch(tmp_path / "checkpoints" / "last.pt", state)
    (row,) = csv.DictReader((tmp_path / "timing.csv").read_text().splitlines())
    seconds, outer_seconds, rate = (float(row[name]) for name in ("seconds", "outer_seconds", "images_per_second"))
    parts, images = (3, 96) if saved else (1, 32)
    assert 0.1 * parts < outer_seconds < seconds < 0.1 * parts + 1
    assert rate == pytest.approx(images / seconds, rel=0.01)


def test_resuming_a_finished_run_shows_its_result_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = settings(tmp_path / "run", epochs=1)
    result = Trainer(built(config)).fit()
    before = (tmp_path / "run" / "checkpoints" / "last.pt").read_bytes()
    assert "finished" not in capsys.readouterr().out
    assert resumed(config) == result
    assert capsys.readouterr().out == "run: finished before, after epoch 1 of 1: nothing is left to train\n"
    assert (tmp_path / "run" / "checkpoints" / "last.pt").read_bytes() == before


def test_a_run_that_has_ended_keeps_no_gradients_and_one_checkpoint(tmp_path: Path) -> None:
    remembered = []

    class Noting(KilledTrainer):
        def save(self) -> None:
            super().save()
            remembered.append(final_state(tmp_path)["learning"]["recent"] is not None)

    config = settings(tmp_path)
    Noting(built(config)).fit()
    assert remembered == [False, True, False]  # the first epoch is warm-up
    previous = tmp_path / "checkpoints" / "previous.pt"
    assert previous.exists()
    resumed(config)
    assert not previous.exists()


def test_a_truncated_checkpoint_falls_back_to_the_previous_one(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = settings(tmp_path / "run")
    trained(settings(tmp_path / "whole"))
    KilledTrainer(built(config)).fit()
    last = tmp_path / "run" / "checkpoints" / "last.pt"
    last.write_bytes(last.read_bytes()[:-1000])
    resumed(config)
    assert len(caplog.records) == 1
    assert_same_run(tmp_path / "whole", tmp_path / "run")


def test_a_run_killed_between_the_row_of_an_epoch_and_its_checkpoint_has_the_row_once(tmp_path: Path) -> None:
    trained(settings(tmp_path / "whole"))
    config = settings(tmp_path / "run")

    class Killed(KilledTrainer):
        def save(self) -> None:
            if self.run.epoch == 2:
                raise KeyboardInterrupt
            super().save()

    Killed(built(config)).fit()
    assert len((tmp_path / "run" / "metrics.csv").read_text().splitlines()) == 3
    resumed(config)
    assert_same_run(tmp_path / "whole", tmp_path / "run")


def test_checkpoints_may_be_epochs_apart_but_the_best_weights_have_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    errors, saved = (0.5, 0.6, 0.7, 0.4, 0.8, 0.9, 0.9), []

    def scored(run: Run, images: Images) -> EvalResult:
        return EvalResult(1.0, errors[run.epoch - 1], 8)

    monkeypatch.setattr(trainer, "evaluate_run", scored)

    class Noting(KilledTrainer):
        def save(self) -> None:
            saved.append(self.run.epoch)
            super().save()

    Trainer(built(settings(tmp_path / "whole", epochs=7))).fit()
    config = settings(tmp_path / "run", epochs=7, checkpoint_every=3)
    Noting(built(config)).fit()
    assert saved == [1, 3, 4, 6, 7]
    assert load_torch(tmp_path / "run/checkpoints/best.pt")["epoch"] == 4
    (tmp_path / "run/checkpoints/last.pt").unlink()  # as if killed in the last epoch
    Trainer(built(dataclasses.replace(config, resume=True))).fit()
    assert_same_run(tmp_path / "whole", tmp_path / "run")


def test_a_loss_that_is_not_finite_stops_the_run_and_keeps_the_last_good_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = built(settings(tmp_path))
    loss = run.task.loss
    monkeypatch.setattr(run.task, "loss", lambda *a: loss(*a) * (math.nan if run.step == 4 else 1))
    with pytest.raises(UserError, match=r"step 5 \(epoch 2\), the checkpoint of step 3 is kept"):
        Trainer(run).fit()
    assert final_state(tmp_path)["step"] == 3
    assert all(torch.isfinite(value).all() for value in final_state(tmp_path)["model"].values())


def test_weights_that_are_not_finite_are_not_saved(tmp_path: Path) -> None:
    class Poisoned(Trainer):
        def end_epoch(self) -> None:
            if self.run.step == 6:
                next(self.run.network.parameters()).data.fill_(math.nan)
            super().end_epoch()

    with pytest.raises(UserError, match="step 6"):
        Poisoned(built(settings(tmp_path))).fit()
    assert final_state(tmp_path)["step"] == 3


@pytest.mark.parametrize(
    ("where", "step", "remedy"),
    [("inner", 1, "`batch_size=16`, or `accumulate=2`"), ("outer", 4, "`outer.microbatch=16`")],
)
def test_where_memory_runs_out_less_is_suggested(where: str, step: int, remedy: str, tmp_path: Path) -> None:
    run = built(settings(tmp_path))
    assert run.outer_loop is not None

    def exhausted(*_: Any) -> None:
        if where == "inner" or (run.outer_loop is not None and run.outer_loop.at_work):
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")

    run.network.register_forward_pre_hook(exhausted)
    with pytest.raises(UserError, match=f"out of memory at step {step}; .*{remedy}"):
        Trainer(run).fit()


def test_a_run_is_not_resumed_on_other_images(tmp_path: Path) -> None:
    config = settings(tmp_path, epochs=1)
    trained(config)
    with pytest.raises(UserError, match="train was 96 and is 128"):
        resumed(config, splits(count=128))


def test_events_can_be_read_by_tensorboard(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    trained(settings(tmp_path, logger="tensorboard"))
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    names = {"train_loss", "validation_error", "selection/Rotate", "hypergradient/q_norm"}
    assert names <= set(events.Tags()["scalars"])
    assert [event.step for event in events.Scalars("train_loss")] == [3, 6, 9]


def test_a_run_begun_on_a_gpu_goes_on_without_its_optimizer(tmp_path: Path) -> None:
    config = settings(tmp_path, epochs=1)
    trained(config)
    state = final_state(tmp_path)
    for group in state["optimizer"]["param_groups"]:
        group["fused"], group["lr"] = True, torch.tensor(0.1)
    run = built(dataclasses.replace(config, resume=True))
    run.load_state_dict(state)
    assert run.optimizer.param_groups[0]["fused"] is False
    Trainer(run).train_step(*next(run.train_batches.epoch(0)))
    assert isinstance(run.optimizer.param_groups[0]["lr"], float)
