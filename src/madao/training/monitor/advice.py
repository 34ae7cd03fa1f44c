"""Advice on a run: before it begins, while it trains, when it fails and at its end.

Functions return lines for people, or None without advice.
"""

import math
import os
from collections.abc import Mapping
from typing import Any

import torch

from madao.config.train_config import DataConfig, OptimizerConfig
from madao.outer.budget import FEWEST_STEPS
from madao.text import alternatives, counted
from madao.training.run.state import Run
from madao.training.splits import Splits

_FEW_IMAGES = 50
"""Validation images below which their error is mostly chance."""
_NAMED_CLASSES = 5
_SMALL, _LARGE = 32, 64
"""Pixels of the images for which WideResNets are made, and above which they take many times as long."""
_WAITING_SHARE, _WAITING_SECONDS = 0.1, 1.0
"""Waiting of an epoch below which there is no advice. The seconds are those in which worker processes start."""
_LARGE_FRACTION = 0.3
"""Part of the training images above which too few are left to train on."""
_LARGEST_CACHE_GIB = 64.0
_GUESSING = 0.95
"""Part of the loss of guessing above which a model has learned hardly anything."""


def describe_run(run: Run) -> list[str]:
    """Return lines on images, model and policy, which show a wrong folder or a policy that cannot learn."""
    config, splits = run.config, run.splits
    lines = []
    if config.resume and run.directory.checkpoints.empty:
        lines.append(f"there is no checkpoint in {run.directory.path}: a new run begins")
    parts = [f"{counted(len(splits.train), 'image')} to train on"]
    parts.append("none for validation" if splits.validation is None else f"{len(splits.validation):,} for validation")
    parts.append("no test images" if splits.test is None else f"{len(splits.test):,} for the test")
    names = ", ".join(splits.classes[:_NAMED_CLASSES]) + (", …" if len(splits.classes) > _NAMED_CLASSES else "")
    where = config.data.root if splits.name == "folder" else splits.name
    lines.append(f"{where}: {', '.join(parts)}; {len(splits.classes)} classes ({names})")
    steps, few = _outer_steps(run), policy_advice(run)
    learning = "" if steps is None else f", of which the policy learns in {steps:,}" if few is None else f"; {few}"
    lines.append(
        f"{run.model_name} at {splits.size} pixels on {run.device.type}: "
        f"{counted(config.epochs, 'epoch')} of {counted(run.steps_per_epoch, 'step')}{learning}"
    )
    if (plan := _describe_plan(run)) is not None:
        lines.append(plan)
    if run.outer_loop is not None and splits.validation is not None and len(splits.validation) < _FEW_IMAGES:
        each = 100 / len(splits.validation)
        lines.append(
            f"the policy learns from {counted(len(splits.validation), 'validation image')}, which is few: each is "
            f"{each:.1f} points of their error; try {_more_validation_images(run)}"
        )
    if run.model_name.startswith("wrn-") and splits.size > _LARGE:
        times = round((splits.size / _SMALL) ** 2)
        lines.append(
            f"{run.model_name} is made for images of {_SMALL} pixels and keeps their resolution: a step takes {times} "
            f"times the time and memory that it takes there; try `data.size={_SMALL}` or `model.name=resnet18`"
        )
    return lines


def _more_validation_images(run: Run) -> str:
    if run.splits.validation_indices is None:
        return "more images in the validation set that the data set has"
    larger = ["`data.val_fraction=0.3`"] if run.config.data.val_fraction < _LARGE_FRACTION else []
    return ", or ".join([*larger, "a folder val/ with more images"])


def policy_advice(run: Run) -> str | None:
    """Return advice if a policy has few outer steps to learn in, or none."""
    steps = _outer_steps(run)
    if steps is None or steps >= FEWEST_STEPS:
        return None
    if steps == 0:
        how = f"in none, and will stay as it starts{_reason(run)}"
    else:
        how = f"in {steps}, which is few: {_more_steps(run)}"
    return f"the policy learns {how}"


def _reason(run: Run) -> str:
    assert run.outer_loop is not None
    plan, config = run.outer_loop.plan, run.config
    if plan is None or config.outer.every is not None or plan.needed <= config.outer.budget:
        return f": {_more_steps(run)}"
    epochs = math.ceil(config.epochs * plan.needed / config.outer.budget)
    return (
        f": the least that is worth while would cost {_percent(plan.needed)} of training's work; try "
        f"`outer.budget={math.ceil(100 * plan.needed) / 100:g}`, or `epochs={epochs}`"
    )


def _more_steps(run: Run) -> str:
    """Return the remedy against few outer steps. Nothing is lowered below 1."""
    values = {"outer.every": _cadence(run), "batch_size": run.config.batch_size}
    lower = [f"`{name}`" for name, value in values.items() if value > 1]
    return f"raise `epochs`{', or lower ' + alternatives(lower) if lower else ''}"


def _describe_plan(run: Run) -> str | None:
    """Return when the policy learns, from how many images, and at which cost, if a plan decided it."""
    if run.outer_loop is None or run.outer_loop.plan is None or run.outer_loop.plan.steps == 0:
        return None
    plan, budget = run.outer_loop.plan, run.config.outer.budget
    often = "every step" if plan.every == 1 else f"every {plan.every} steps"
    start = run.outer_loop.outer.warmup // run.steps_per_epoch + 1
    more = f", more than the budget of {_percent(budget)}, but only seconds" if plan.share > 1.1 * budget else ""
    return (
        f"the policy learns {often} from epoch {start} on, from {plan.train_batch_size:,} training and "
        f"{plan.batch_size:,} validation images at a time, with learning rate {plan.lr:.2g}: about "
        f"{_percent(plan.share)} of training's work{more}"
    )


def _percent(part: float) -> str:
    return f"{100 * part:.0f} %" if part >= 0.1 else f"{100 * part:.1f} %"


def _outer_steps(run: Run) -> int | None:
    if run.outer_loop is None:
        return None
    every, total = _cadence(run), run.config.epochs * run.steps_per_epoch
    return max(total // every - run.outer_loop.outer.warmup // every, 0)


def _cadence(run: Run) -> int:
    """Return the number of training steps between outer steps."""
    assert run.outer_loop is not None
    assert run.outer_loop.outer.every is not None
    return run.outer_loop.outer.every


def loader_advice(timing: Mapping[str, Any], config: DataConfig, splits: Splits, on_gpu: bool = False) -> str | None:
    """Return advice if the model waits for images.

    Args:
        timing: A row of timing.csv.
        config: The settings of the images.
        splits: The images.
        on_gpu: Whether the model is on a GPU, which may decode images.
    """
    names = ("model_images_per_second", "images_per_second", "waiting_seconds", "seconds")
    model_rate, rate, waiting, seconds = (timing[name] for name in names)
    if model_rate is None or waiting < max(_WAITING_SHARE * seconds, _WAITING_SECONDS):
        return None
    channels, height, width = splits.train.shape
    gib = (len(splits.train) + len(splits.validation or ())) * channels * height * width / 2**30
    remedies = ["a smaller `data.size`"] if splits.size > 1 else []
    if config.processes < (os.cpu_count() or 1):
        remedies.insert(0, f"more `data.workers` than {config.processes}")
    if on_gpu and config.decode == "workers":
        remedies.insert(0, "`data.decode=gpu`")
    if gib <= _LARGEST_CACHE_GIB:
        remedies.append(f"`data.cache_gib={max(gib, 0.1) + 0.05:.1f}`, which keeps them decoded")
    if not remedies:
        return None
    return (
        f"the model waits for images {100 * waiting / seconds:.0f} % of the time ({rate:,.0f} images/s of "
        f"{model_rate:,.0f} it could take); try {', or '.join(remedies)}"
    )


def memory_advice(error: BaseException, run: Run) -> str | None:
    """Return the remedy for an error, if torch ran out of memory, on a GPU or on the CPU."""
    if not isinstance(error, torch.OutOfMemoryError) and "DefaultCPUAllocator: can't allocate memory" not in str(error):
        return None
    least = "try a smaller `data.size`, or a smaller model by `model.name`"  # images pass one by one already
    if run.outer_loop is not None and run.outer_loop.at_work:
        largest = run.outer_loop.largest_pass(run.train_batches.batch_size)
        remedy = f"try `outer.microbatch={largest // 2}`" if largest > 1 else least
        return f"the policy's step did not fit, {remedy}"
    batch_size, parts = run.config.batch_size, 2 * run.config.accumulate
    if batch_size <= run.config.accumulate:
        return least
    half = max(batch_size // parts, 1) * run.config.accumulate  # parts of equal size
    smaller = f"try `batch_size={half}`"
    return smaller if batch_size % parts else f"{smaller}, or `accumulate={parts}`, which keeps the batch"


def divergence_advice(config: OptimizerConfig) -> str:
    """Return remedies for weights or losses that are not finite any more."""
    remedies = ["with a lower `optimizer.lr`"]
    if config.clip is None or config.clip > 1:
        remedies.append("`optimizer.clip=1`")
    if config.warmup < 1:
        remedies.append("`optimizer.warmup=1`")
    return f"start a new run in another `out`, {alternatives(remedies)}"


def model_advice(run: Run) -> str | None:
    """Return advice if a finished run's training loss is no better than guessing classes by their shares."""
    if run.config.task.name != "classification":
        return None
    labels, smoothing = run.splits.train.labels, run.config.optimizer.label_smoothing
    counts = labels.bincount(minlength=len(run.splits.classes))
    shares = (1 - smoothing) * counts / len(labels) + smoothing / len(counts)
    guessing = float(torch.special.entr(shares).sum())
    loss = float(run.directory.read_metrics()[-1]["train_loss"])
    if loss < _GUESSING * guessing:
        return None
    smaller = " or a smaller `batch_size`" if run.config.batch_size > 1 else ""
    return (
        f"the model has learned hardly anything: its training loss is {loss:.2f}, that of guessing {guessing:.2f}; try "
        f"`optimizer.lr={run.config.optimizer.lr / 10:g}`, or more steps by `epochs`{smaller}"
    )
