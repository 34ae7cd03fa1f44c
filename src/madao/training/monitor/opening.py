"""What a run says before it starts: the images, the model, and how often the policy will learn."""

from madao.text import counted
from madao.training.build import model_name
from madao.training.trainer import Trainer

_FEW = 20
"""Outer steps below which a policy can hardly leave its start."""

_CLASSES = 5

_FEW_IMAGES = 50
"""Validation images below which chance has much to say."""

_MADE_FOR, _LARGE = 32, 64
"""Pixels of images that WideResNets are made for, and from which on they take many times as much."""


def opening(trainer: Trainer) -> list[str]:
    """Lines for people, so that a wrong folder or a policy that cannot learn is seen at once."""
    config, splits = trainer.config, trainer.splits
    lines = []
    if config.resume and trainer.directory.checkpoints.empty:
        lines.append(f"there is no checkpoint in {trainer.directory.path}: a new run begins")
    parts = [f"{counted(len(splits.train), 'image')} to train on"]
    parts.append("none for validation" if splits.validation is None else f"{len(splits.validation):,} for validation")
    parts.append("no test images" if splits.test is None else f"{len(splits.test):,} for the test")
    names = ", ".join(splits.classes[:_CLASSES]) + (", …" if len(splits.classes) > _CLASSES else "")
    where = config.data.root if splits.name == "folder" else splits.name
    lines.append(f"{where}: {', '.join(parts)}; {len(splits.classes)} classes ({names})")
    model = model_name(config.model, splits, config.task)
    lines.append(
        f"{model} at {splits.size} pixels on {trainer.device.type}: "
        f"{counted(config.epochs, 'epoch')} of {counted(trainer.steps_per_epoch, 'step')}{_learning(trainer)}"
    )
    if trainer.learning is not None and splits.validation is not None and len(splits.validation) < _FEW_IMAGES:
        each = 100 / len(splits.validation)
        lines.append(
            f"the policy learns from {counted(len(splits.validation), 'validation image')}, which is few, and each is "
            f"{each:.1f} points of their error; a larger --data.val_fraction, 0.3 say, or a folder val/, has more"
        )
    if model.startswith("wrn-") and splits.size > _LARGE:
        times = round((splits.size / _MADE_FOR) ** 2)
        lines.append(
            f"{model} is made for images of {_MADE_FOR} pixels and keeps their resolution: a step takes {times} × the "
            f"time and memory that it takes there; consider --data.size {_MADE_FOR} or --model.name resnet18"
        )
    return lines


def warning(trainer: Trainer) -> str | None:
    """That a policy has few steps to learn in, or none, and the remedy; None where it has enough."""
    steps = _outer_steps(trainer)
    if steps is None or steps >= _FEW:
        return None
    how = "in none, and will stay as it starts" if steps == 0 else f"in {steps}, which is few"
    return f"the policy learns {how}: raise --epochs, or lower --outer.every or --batch_size"


def _learning(trainer: Trainer) -> str:
    steps, few = _outer_steps(trainer), warning(trainer)
    return "" if steps is None else f", of which the policy learns in {steps:,}" if few is None else f"; {few}"


def _outer_steps(trainer: Trainer) -> int | None:
    if trainer.learning is None:
        return None
    outer = trainer.learning.outer
    total = trainer.config.epochs * trainer.steps_per_epoch
    return max(total // outer.every - outer.warmup // outer.every, 0)
