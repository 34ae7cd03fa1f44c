"""Loggers: a run's scalars in other services, here TensorBoard.

`Trainer` creates the logger, calls `write` after every epoch and `close` at the end.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from madao.outer.outer_step import OuterStep
from madao.policy import AugmentationPolicy, Policy


class TensorBoardLogger:
    """A writer of scalars for TensorBoard.

    Args:
        folder: The folder of the event files.
        step: The step at which the run starts or resumes. TensorBoard hides later events in the folder.
    """

    def __init__(self, folder: Path, step: int) -> None:
        from torch.utils.tensorboard import SummaryWriter  # slow to import

        self._writer = SummaryWriter(str(folder), purge_step=step + 1 if step else None)

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
        for name, value in scalars.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()

    def close(self) -> None:
        """Flush and close the files."""
        self._writer.close()
