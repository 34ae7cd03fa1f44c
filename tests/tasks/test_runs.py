"""Runs of MoCo and segmentation: resume, evaluation, and settings that a task refuses."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from madao.cli import main
from madao.policy import ClassPolicy, ImagePolicy

QUICK = ["--tensorboard=false", "--device=cpu", "--epochs=2", "--outer.warmup=0"]
MOCO = ["--task.name=moco", "--task.queue=256", "--batch_size=128", *QUICK]
SEGMENTATION = ["--task.name=segmentation", "--data.name=shapes", "--data.shift=rotate", "--batch_size=100", *QUICK]
SHORT = {
    "k-NN error": [*MOCO, "--outer.every=5", "--task.version=v2", "--task.bn_splits=2"],
    "mIoU error": [*SEGMENTATION, "--outer.every=4", "--augment.cutout=4"],
}


def same(one: Any, other: Any) -> bool:
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    return torch.equal(one, other) if isinstance(one, torch.Tensor) else bool(one == other)


@pytest.mark.parametrize("error", SHORT)
def test_a_run_stops_resumes_and_is_measured(tmp_path: Path, capsys: pytest.CaptureFixture[str], error: str) -> None:
    whole, halves = tmp_path / "whole", tmp_path / "halves"
    for out in (whole, halves):
        assert main(["train", *SHORT[error], f"--out={out}"]) == 0
    (halves / "result.json").unlink()
    (halves / "checkpoints" / "last.pt").unlink()  # leaves the checkpoint of the first epoch
    assert main(["train", f"--out={halves}", "--resume"]) == 0
    for name in ("metrics.csv", "trajectory.jsonl", "outer.csv"):
        assert (whole / name).read_text() == (halves / name).read_text(), name
    states = [torch.load(run / "checkpoints" / "last.pt", weights_only=True)["task"] for run in (whole, halves)]
    assert same(*states)  # of MoCo: queue and key encoder
    assert (states[0] is None) == (error == "mIoU error")
    capsys.readouterr()
    assert main(["evaluate", str(whole), "--device=cpu"]) == 0
    result = json.loads((whole / "result.json").read_text())
    assert f"test {error} {100 * result['test_error']:.2f} %" in capsys.readouterr().out
    assert error == "k-NN error" or result["test_metrics"]["mIoU"] == pytest.approx(1 - result["test_error"])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ([*MOCO, "--augment.cutout=4"], "--augment.cutout must be 0 for the task moco, got 4"),
        ([*MOCO, "--task.queue=100"], "--task.queue must hold two batches of 128 images, got 100"),
        ([*MOCO, "--task.bn_splits=3"], "--task.bn_splits must divide the images of one pass, 128 by --batch_size"),
        ([*MOCO, "--sync_batch_norm=true"], "--sync_batch_norm does not work with --task.name moco"),
        ([*MOCO, "--task.momentum=2"], "--task.momentum must lie between 0 and 1, got 2"),
        *(
            (
                [*MOCO, "--task.bn_splits=8", f"--config={{outer: {{model_mode: train, {name}: 20}}}}"],
                f"outer.{name}, got 8",
            )
            for name in ("train_batch_size", "curvature_batch_size", "pathwise_batch_size", "microbatch")
        ),
        (["--task.name=segmentation"], "digits has no masks"),
        (["--data.name=shapes"], "shapes has masks"),
        ([*SEGMENTATION, "--outer.baseline=class-mean"], "class-mean needs a class for every image"),
        (
            [*SEGMENTATION, "--config={optimizer: {label_smoothing: 0.1}}"],
            "label_smoothing must be 0 for the task segmentation",
        ),
    ],
)
def test_a_task_refuses_settings(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], settings: list[str], message: str
) -> None:
    assert main(["train", *settings, f"--out={tmp_path / 'run'}"]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("condition", "policy", "message"),
    [
        ("class", ClassPolicy(10), "needs a class for every image, and moco has none"),
        ("image", ImagePolicy(), "draws for one view of it, and moco has 2"),
    ],
)
def test_moco_refuses_conditional_policies(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], condition: str, policy: Any, message: str
) -> None:
    policy.spec().save(tmp_path / "policy.json")
    for flag in (f"--augment.conditional_on={condition}", f"--augment.method={tmp_path / 'policy.json'}"):
        assert main(["train", *MOCO, flag, f"--out={tmp_path / 'run'}"]) == 2
        assert message in capsys.readouterr().err
