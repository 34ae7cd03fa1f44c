"""Run directories as training leaves them, without the training."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml

from madao import ClassPolicy, Policy
from madao.config.train_config import AugmentConfig, DataConfig, OuterConfig, TrainConfig, to_dict
from madao.training.run.directory import RunDirectory


def write_run(
    path: Path,
    method: str = "learned",
    seed: int = 0,
    epochs: int = 8,
    ended: bool = True,
    error: float = 0.05,
    side: int = 12,
    channels: int = 3,
    classes: tuple[str, ...] = (),
    learned: bool = True,
    skipped: int = 0,
    **changes: Any,
) -> Path:
    """A run whose policy learns to rotate; `changes` are settings.

    With classes, images of the first are inverted most of the time. One that has not learned took no outer step, or
    skipped some in each epoch.
    """
    settings: dict[str, Any] = {
        "data": DataConfig(name="digits", shift="rotate"),
        "augment": AugmentConfig(method=method),
        "outer": OuterConfig(every=2, warmup=2),
        "epochs": epochs,
        "seed": seed,
        "out": str(path),
    }
    config = TrainConfig(**settings | changes)
    run = RunDirectory(path)
    run.write("config.yaml", yaml.safe_dump(to_dict(config), sort_keys=False))
    run.write_environment(torch.device("cpu"))
    run.write_json("split.json", {"classes": ["cat & dog", "<b>owl</b>"], "mean": [0.5], "std": [0.2]})
    generator = np.random.default_rng(seed)
    samples = generator.integers(0, 256, (8, channels, side, side), dtype=np.uint8)
    np.savez_compressed(path / "samples.npz", images=samples, labels=np.arange(8) % max(len(classes), 1))
    policy = None if method != "learned" else ClassPolicy(classes) if classes else Policy()
    if isinstance(policy, ClassPolicy):
        index = [operation.name for operation in policy.operations].index("Invert")
        with torch.no_grad():
            policy.get_parameter("selection_deviations")[:, 0, index] = 8
    for epoch in range(epochs + 1):
        if policy is not None:
            _turn(policy, epoch / epochs if learned else 0.0)
            _record(run, policy, epoch)
        if epoch:
            _epoch(run, epoch, error * (1 + 3 * math.exp(-epoch)), policy is not None and learned, skipped)
    if policy is not None:
        policy.spec().save(path / "policy.json")
    if ended:
        result = {"test_error": error, "test_loss": 0.3, "validation_error": error, "epoch": epochs, "policy": {}}
        run.write_json("result.json", {**result, "out": str(path)})
    return path


def _turn(policy: Policy, progress: float) -> None:
    index = [operation.name for operation in policy.operations].index("Rotate")
    with torch.no_grad():
        policy.selection_logits.zero_()
        policy.selection_logits[:, index] = 4 * progress
        policy.magnitude_logits[:, 4] = 0.5 + progress


def _record(run: RunDirectory, policy: Policy, epoch: int) -> None:
    if epoch == 0:
        names = [operation.name for operation in policy.operations]
        run.append_json("trajectory.jsonl", {"epoch": 0, "step": 0, "operations": names})
    values = {name: getattr(policy, name).tolist() for name in ("selection", "application", "magnitude")}
    with (run.path / "trajectory.jsonl").open("a") as file:  # without waiting for the disk
        file.write(json.dumps({"epoch": epoch, "step": 10 * epoch, **values}) + "\n")


def _epoch(run: RunDirectory, epoch: int, error: float, learns: bool, skipped: int) -> None:
    metrics = {"epoch": epoch, "step": 10 * epoch, "lr": 0.1, "train_loss": 1 / epoch, "train_error": 2 * error}
    metrics |= {"validation_loss": 0.5 / epoch, "validation_error": error, "outer_updates": 5 * epoch if learns else 0}
    run.append_rows("metrics.csv", [{**metrics, "outer_skipped": skipped * epoch}])
    timing = {"epoch": epoch, "step": 10 * epoch, "seconds": 3.0, "images_per_second": 300.0}
    timing["memory_mib"] = 650.0 if epoch == 1 else 700.0
    run.append_rows("timing.csv", [{**timing, "outer_seconds": 1.0 if learns else 0.0}])
    if learns and epoch > 2:
        health: dict[str, Any] = {
            "epoch": epoch,
            "outer_loss": 0.4,
            "v_norm": 1.0,
            "q_norm": 10.0,
            "grad_norm": 0.1,
            "products": 1,
        }
        health |= {"residual": 0.9, "status": "truncated", "applied": 1, "signal_selection": 0.02}
        run.append_rows("outer.csv", [{**health, "step": 10 * epoch + 2 * i} for i in range(5)])
