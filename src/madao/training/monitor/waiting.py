"""Whether the model waits for its images, and what to do about it."""

import os
from collections.abc import Mapping
from typing import Any

from madao.config.train_config import DataConfig
from madao.training.splits import Splits

_SHARE = 0.1
"""Part of the time from which on waiting is worth a word."""
_SECONDS = 1.0
"""Waiting of an epoch that is not: its workers have to start."""
_GIB = 64.0
"""More decoded images than this no device keeps."""


def timing_row(seconds: float, rate: float, cost: Mapping[str, float | None]) -> dict[str, float | None]:
    """An epoch's row of timing.csv.

    Args:
        seconds: Of the epoch.
        rate: Its images per second.
        cost: What the meter read: `waiting_seconds` among them, None where images need not be waited for.

    Returns:
        All of these, and `model_images_per_second`: what the model could take if images were there.
    """
    waiting = cost["waiting_seconds"]
    own = None if waiting is None or waiting >= seconds else rate * seconds / (seconds - waiting)
    return {"seconds": seconds, "images_per_second": rate, **cost, "model_images_per_second": own}


def loader_advice(timing: Mapping[str, Any], config: DataConfig, splits: Splits, on_gpu: bool = False) -> str | None:
    """What to say of an epoch whose images came too late, if they did.

    Args:
        timing: The epoch's row of timing.csv.
        config: Where images come from.
        splits: The images.
        on_gpu: Whether the model is on a GPU, which might decode them.
    """
    own, rate, waiting = (timing[name] for name in ("model_images_per_second", "images_per_second", "waiting_seconds"))
    if own is None or waiting < max(_SHARE * timing["seconds"], _SECONDS):
        return None
    channels, height, width = splits.train.shape
    gib = (len(splits.train) + len(splits.validation or ())) * channels * height * width / 2**30
    remedies = ["a smaller --data.size"]
    if config.processes < (os.cpu_count() or 1):
        remedies.insert(0, f"more --data.workers than {config.processes}")
    if on_gpu and config.decode == "workers":
        remedies.insert(0, "--data.decode gpu")
    if gib <= _GIB:
        remedies.append(f"--data.cache_gib {max(gib, 0.1) + 0.05:.1f} to keep them decoded")
    return (
        f"the model waits for images {100 * waiting / timing['seconds']:.0f} % of the time ({rate:,.0f} images/s of "
        f"{own:,.0f} it could take); what helps: {', or '.join(remedies)}"
    )
