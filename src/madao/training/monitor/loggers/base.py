"""The contract of a logger."""

from collections.abc import Mapping
from typing import Protocol


class Logger(Protocol):
    """A writer of a run's scalars to another service."""

    def write(self, step: int, scalars: Mapping[str, float]) -> None:
        """Write numbers by name.

        Args:
            step: The number of training steps so far.
            scalars: The numbers.
        """

    def close(self, complete: bool) -> None:
        """End the record of a run.

        Args:
            complete: Whether the run has trained to its end.
        """
