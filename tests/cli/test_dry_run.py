"""`--dry-run` tells what would be trained, and leaves nothing behind."""

import re
from pathlib import Path

import pytest
import torch

from madao.cli import main
from madao.training.dry_run import measure_cost
from tests.helpers.command_line import fails
from tests.helpers.training import built, settings, trained

QUICK = [
    "--device",
    "cpu",
    "--batch_size",
    "300",
    "--data.max_images",
    "600",
    "--data.workers",
    "0",
    "--outer.warmup",
    "0",
]


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_a_training_is_described_and_nothing_is_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "--dry-run", *QUICK, "--epochs", "30", "--outer.every", "2"]) == 0
    printed = capsys.readouterr().out
    assert "small-cnn at 16 pixels on cpu: 30 epochs of 2 steps" in printed
    assert "small-cnn with 14,458 parameters, trained by sgd" in printed
    assert re.search(r"\n60 steps of [\d,]+ ms and 30 outer steps of [\d,]+ ms\n", printed)
    assert re.search(r"takes about \d+ s and [\d,]+ MiB of memory \(the whole process\)", printed)
    assert [*tmp_path.iterdir()] == []


def test_a_comparison_is_described_method_by_method(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    methods = ["--methods", "base,randaugment", "--seeds", "2", "--search.trials", "3"]
    assert main(["compare", "--dry-run", *QUICK, "--epochs", "4", *methods]) == 0
    printed = capsys.readouterr().out
    assert "\nbase: 2 trainings; in each, 8 steps of" in printed
    assert "\nrandaugment: 5 trainings; in each, 8 steps of" in printed
    assert "\n7 trainings: about " in printed
    assert [*tmp_path.iterdir()] == []


def test_the_rest_of_a_run_is_estimated_and_its_files_stay(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    more = ["--augment.method", "base", "--out", "run"]
    assert main(["train", *QUICK, *more, "--epochs", "2"]) == 0
    before = {path: path.read_bytes() for path in Path("run").rglob("*") if path.is_file()}
    capsys.readouterr()
    assert main(["train", "--out", "run", "--resume", "--dry-run"]) == 0
    assert "\n0 steps of" in capsys.readouterr().out
    assert "already holds a run" in fails(["train", "--dry-run", *QUICK, *more], capsys)
    assert {path: path.read_bytes() for path in Path("run").rglob("*") if path.is_file()} == before


@pytest.mark.parametrize(("every", "warmup", "outer_steps"), [(2, 1, 3), (1, 0, 9), (1, 2, 3), (20, 0, 0)])
def test_steps_of_the_policy_are_counted_as_they_are_taken(
    tmp_path: Path, every: int, warmup: int, outer_steps: int
) -> None:
    config = settings(tmp_path / "run")
    config = settings(tmp_path / "run", outer=type(config.outer)(every=every, warmup=warmup, batch_size=16))
    run = built(config)
    taken = 0 if run.outer_loop is None else run.outer_loop.outer.updates
    cost = measure_cost(run)
    assert (cost.steps, cost.outer_steps) == (9, outer_steps)
    assert (cost.outer_seconds is None) == (outer_steps == 0)
    assert cost.seconds >= cost.steps * cost.step_seconds > 0
    assert run.outer_loop is not None
    assert run.outer_loop.outer.updates - taken <= 2
    # As many as a training takes.
    finished = trained(config)
    assert finished.outer_loop is not None
    assert finished.outer_loop.outer.updates == outer_steps


def test_too_little_memory_is_told_with_its_remedy(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def lacks(*_: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr("madao.training.trainer.Trainer.train_step", lacks)
    assert "--batch_size 150" in fails(["train", "--dry-run", *QUICK], capsys)
