"""Scalars for TensorBoard, in event files."""

import io
import os
import socket
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any


class TensorBoardLogger:
    """A logger that appends to an event file.

    torch's `SummaryWriter` writes in a thread, which dies for good once it cannot write, and then ends the run.

    Args:
        folder: The folder of the event files.
        step: The step at which the run starts or resumes. TensorBoard hides later events in the folder.
        settings: Not written; TensorBoard shows scalars.
    """

    def __init__(self, folder: Path, step: int, settings: Mapping[str, Any] | None = None) -> None:
        from tensorboard.summary.writer.record_writer import RecordWriter  # slow to import, and early if it is missing

        self._record_writer = RecordWriter
        self._file = folder / f"events.out.tfevents.{int(time.time())}.{socket.gethostname()}.{os.getpid()}"
        self._resumed_at = step

    def write(self, step: int, scalars: Mapping[str, float]) -> None:
        """Add a record for each scalar. Begin a file if there is none, as at first, or after its deletion."""
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

    def close(self, complete: bool) -> None:
        """Do nothing: the file is closed after each write."""
