"""Loggers: a run's scalars in other services, here TensorBoard.

`Trainer` creates the logger and calls `write` after every epoch.
"""

import io
import logging
import os
import socket
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from madao.outer.outer_step import OuterStep
from madao.policy import AugmentationPolicy, Policy

_LOGGER = logging.getLogger("madao")


class TensorBoardLogger:
    """A writer of scalars for TensorBoard. A run does not depend on it: if it cannot write, it warns.

    torch's `SummaryWriter` writes in a thread, which dies for good once it cannot write, and then ends the run.

    Args:
        folder: The folder of the event files.
        step: The step at which the run starts or resumes. TensorBoard hides later events in the folder.
    """

    def __init__(self, folder: Path, step: int) -> None:
        from tensorboard.summary.writer.record_writer import RecordWriter  # slow to import, and early if it is missing

        self._record_writer = RecordWriter
        self._file = folder / f"events.out.tfevents.{int(time.time())}.{socket.gethostname()}.{os.getpid()}"
        self._resumed_at = step

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
        try:
            self._append(step, scalars)
        except OSError as error:
            _LOGGER.warning(
                "cannot write to %s (%s); TensorBoard lacks step %d, the run goes on", self._file, error.strerror, step
            )

    def _append(self, step: int, scalars: Mapping[str, float]) -> None:
        """Add a record for each scalar; begin a file if there is none, as at first, or after its deletion."""
        from tensorboard.compat.proto.event_pb2 import Event, SessionLog
        from tensorboard.compat.proto.summary_pb2 import Summary

        now, events = time.time(), []
        if not self._file.exists():
            events.append(Event(wall_time=now, file_version="brain.Event:2"))
            if self._resumed_at:
                log = SessionLog(status=SessionLog.START)
                events.append(Event(wall_time=now, step=self._resumed_at + 1, session_log=log))
        for name, value in scalars.items():
            summary = Summary(value=[Summary.Value(tag=name, simple_value=value)])
            events.append(Event(wall_time=now, step=step, summary=summary))
        records = io.BytesIO()
        writer = self._record_writer(records)
        for event in events:
            writer.write(event.SerializeToString())
        self._file.parent.mkdir(parents=True, exist_ok=True)
        with self._file.open("ab") as file:
            file.write(records.getvalue())
