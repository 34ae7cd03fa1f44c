"""Scalars for Weights & Biases."""

import os
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import wandb

from madao.training.monitor.loggers.identity import remember


class WandbLogger:
    """A logger that writes to Weights & Biases. Its environment variables apply, such as `WANDB_MODE=offline`.

    Args:
        folder: The folder of the service's files.
        step: The step at which the run starts or resumes.
        settings: The settings of the run.
    """

    def __init__(self, folder: Path, step: int, settings: Mapping[str, Any]) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", "madao"),
            name=folder.parent.name,
            id=remember(folder / "id", lambda: uuid.uuid4().hex[:12]),
            resume="allow",
            dir=folder,
            config=dict(settings),
            settings=wandb.Settings(silent=True, console="off", disable_git=True, save_code=False),
        )

    def write(self, step: int, scalars: Mapping[str, float]) -> None:
        """Write numbers by name."""
        self._run.log(dict(scalars), step=step)

    def close(self, complete: bool) -> None:
        """End the record of a run."""
        self._run.finish(exit_code=0 if complete else 1)
