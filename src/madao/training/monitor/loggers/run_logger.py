"""The scalars of a run, for a logger on which the run does not depend."""

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from madao.config.train_config import TrainConfig, to_dict
from madao.errors import first_line
from madao.outer.outer_step import OuterStep
from madao.policy import AugmentationPolicy, Policy
from madao.training.monitor.loggers.base import Logger
from madao.training.monitor.loggers.registry import open_logger

_LOGGER = logging.getLogger("madao")


class RunLogger:
    """A writer of the scalars of a run. If the service fails, it warns once, and the run goes on.

    Nothing is written before `open`.

    Args:
        name: The name of the logger.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.logger: Logger | None = None
        self._warned = False

    def open(self, run: Path, step: int, config: TrainConfig) -> None:
        """Begin or continue the record of a run.

        Args:
            run: The run directory.
            step: The step at which the run starts or resumes.
            config: The settings of the run.

        Raises:
            UserError: The service cannot begin.
        """
        self.logger = open_logger(self.name, run, step, to_dict(config))

    def write(
        self, step: int, row: Mapping[str, Any], policy: AugmentationPolicy | None, outer: OuterStep | None
    ) -> None:
        """Write the scalars of an epoch.

        Args:
            step: The number of steps so far.
            row: Numbers by name. Numbers that are None are left out.
            policy: The policy, whose probabilities are written if it is learned.
            outer: The latest outer step, if any.
        """
        if self.logger is None:
            return
        try:
            self.logger.write(step, scalars_of(row, policy, outer))
        except Exception as error:  # each service has errors of its own
            self._warn(error, f"at step {step}")

    def close(self, complete: bool) -> None:
        """End the record of the run."""
        if self.logger is None:
            return
        try:
            self.logger.close(complete)
        except Exception as error:
            self._warn(error, "at the end of the run")
        self.logger = None

    def _warn(self, error: Exception, when: str) -> None:
        if not self._warned:
            self._warned = True
            _LOGGER.warning("%s failed %s (%s) and lacks numbers; the run goes on", self.name, when, first_line(error))


def scalars_of(row: Mapping[str, Any], policy: AugmentationPolicy | None, outer: OuterStep | None) -> dict[str, float]:
    """Return the numbers of an epoch by name: those of its row, of a learned policy and of the last outer step."""
    scalars = {name: value for name, value in row.items() if value is not None and name not in ("epoch", "step")}
    if isinstance(policy, Policy):
        for name in ("selection", "application", "magnitude"):
            means = getattr(policy, name).detach().mean(0).tolist()
            for operation, mean in zip(policy.operations, means, strict=True):
                if name != "magnitude" or operation.has_magnitude:
                    scalars[f"{name}/{operation.name}"] = mean
    if outer is not None:
        for name in ("outer_loss", "v_norm", "q_norm", "residual", "grad_norm"):
            value = getattr(outer.stats, name)
            if value is not None:
                scalars[f"hypergradient/{name}"] = value
    return scalars
