"""Runs of MoCo and segmentation: resume, evaluation, and settings that a task refuses."""

import json
from pathlib import Path
from typing import Any

import pytest

from madao.cli import main
from madao.policy import ClassPolicy, ImagePolicy
from tests.helpers.training import assert_same, final_state

QUICK = ["--logger=none", "--device=cpu", "--epochs=2", "--outer.warmup=0"]
MOCO = ["--task.name=moco", "--task.queue=256", "--batch_size=128", *QUICK]
SEGMENTATION = ["--task.name=segmentation", "--data.name=shapes", "--data.shift=rotate", "--batch_size=100", *QUICK]
SHORT = {
    "k-NN error": [*MOCO, "--outer.every=5", "--task.version=v2", "--task.bn_splits=2"],
    "mIoU error": [*SEGMENTATION, "--outer.every=4", "--augment.cutout=4"],
}


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
    assert_same(final_state(whole)["task"], final_state(halves)["task"])  # of MoCo: queue and key encoder
    assert (final_state(whole)["task"] is None) == (error == "mIoU error")
    capsys.readouterr()
    assert main(["evaluate", str(whole), "--device=cpu"]) == 0
    result = json.loads((whole / "result.json").read_text())
    assert f"test {error} {100 * result['test_error']:.2f} %" in capsys.readouterr().out
    assert error == "k-NN error" or result["test_metrics"]["mIoU"] == pytest.approx(1 - result["test_error"])


@pytest.mark.parametrize(
    ("settings", "name"),
    [
        ([*MOCO, "--augment.cutout=4"], "--augment.cutout"),
        ([*MOCO, "--task.queue=100"], "--task.queue"),
        ([*MOCO, "--task.bn_splits=3"], "--task.bn_splits"),
        ([*MOCO, "--config={sync_batch_norm: true}"], "sync_batch_norm"),
        ([*MOCO, "--task.momentum=2"], "--task.momentum"),
        *(
            (
                [*MOCO, "--task.bn_splits=8", f"--config={{outer: {{model_mode: train, {name}: 20}}}}"],
                f"outer.{name}",
            )
            for name in ("train_batch_size", "curvature_batch_size", "pathwise_batch_size", "microbatch")
        ),
        (["--task.name=segmentation"], "digits"),
        (["--data.name=shapes"], "shapes"),
        ([*SEGMENTATION, "--outer.baseline=class-mean"], "class-mean"),
        (
            [*SEGMENTATION, "--config={optimizer: {label_smoothing: 0.1}}"],
            "label_smoothing",
        ),
    ],
)
def test_a_task_refuses_settings(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], settings: list[str], name: str
) -> None:
    assert main(["train", *settings, f"--out={tmp_path / 'run'}"]) == 2
    assert name in capsys.readouterr().err


@pytest.mark.parametrize(("condition", "policy"), [("class", ClassPolicy(10)), ("image", ImagePolicy())])
def test_moco_refuses_conditional_policies(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], condition: str, policy: Any
) -> None:
    policy.spec().save(tmp_path / "policy.json")
    for flag in (f"--augment.conditional_on={condition}", f"--augment.method={tmp_path / 'policy.json'}"):
        assert main(["train", *MOCO, flag, f"--out={tmp_path / 'run'}"]) == 2
        assert "moco" in capsys.readouterr().err
