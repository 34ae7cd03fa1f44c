"""Loggers by name."""

import importlib
import importlib.util
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from madao.errors import UserError, first_line
from madao.text import alternatives
from madao.training.monitor.loggers.base import Logger

LOGGERS = {
    "tensorboard": "tensorboard:TensorBoardLogger",
    "wandb": "wandb:WandbLogger",
    "mlflow": "mlflow:MlflowLogger",
}
"""The module of each logger, named like the package that it needs, and its class."""

NONE = "none"


def check_logger(name: str) -> None:
    """Raise `UserError` if a logger needs a package that is not installed."""
    if name != NONE and importlib.util.find_spec(name) is None:
        extra = "train" if name == "tensorboard" else name
        raise UserError(f"`logger={name}` needs the package {name}: pip install 'madao[{extra}]'; or use `logger=none`")


def open_logger(name: str, run: Path, step: int, settings: Mapping[str, Any]) -> Logger | None:
    """Return a logger, None for `none`.

    Args:
        name: The logger.
        run: The run directory; the logger has a folder of its own in it.
        step: The step at which the run starts or resumes.
        settings: The settings of the run.

    Raises:
        UserError: The service cannot begin.
    """
    if name == NONE:
        return None
    module, _, kind = LOGGERS[name].partition(":")
    try:
        service = getattr(importlib.import_module(f"{__package__}.{module}"), kind)
        return cast(Logger, service(run / name, step, settings))
    except Exception as error:  # each service has errors of its own
        others = [f"`logger={other}`" for other in ("tensorboard", NONE) if other != name]
        raise UserError(
            f"`logger={name}` cannot begin: {first_line(error).rstrip('.')}; mend it, or use {alternatives(others)}"
        ) from error
