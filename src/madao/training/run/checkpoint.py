"""Files of checkpoints that survive a crash at any moment: the last one, and the one before it.

`Run.state_dict` decides what a checkpoint contains.
"""

import logging
import os
from pathlib import Path
from typing import Any

from madao.errors import UserError
from madao.files import load_torch, save_torch, sync_folder

_LOGGER = logging.getLogger("madao")

LAST = "last.pt"
PREVIOUS = "previous.pt"


class Checkpoints:
    """The checkpoints of a run: the last one, and the one before it.

    Args:
        folder: The folder of the checkpoints.
        writes: Whether this process writes.
    """

    def __init__(self, folder: Path, writes: bool = True) -> None:
        self.folder, self.writes = folder, writes

    @property
    def empty(self) -> bool:
        """Whether there is no checkpoint."""
        return not any((self.folder / name).exists() for name in (LAST, PREVIOUS))

    def save(self, state: dict[str, Any]) -> None:
        """Write `state` as the last checkpoint, and keep the one before it as the previous."""
        if not self.writes:
            return
        last = self.folder / LAST
        arriving = self.folder / "arriving.pt"
        save_torch(arriving, state)
        if last.exists():
            os.replace(last, self.folder / PREVIOUS)
        # A process that is killed here leaves only the previous one, which `load` finds.
        os.replace(arriving, last)
        sync_folder(self.folder)

    def keep_last_only(self) -> None:
        """Remove the previous checkpoint, which a run that has ended does not need."""
        if self.writes:
            (self.folder / PREVIOUS).unlink(missing_ok=True)

    def load(self) -> dict[str, Any] | None:
        """Return the newest checkpoint that can be read; None if there is no checkpoint.

        Raises:
            UserError: There are checkpoints, and none of them can be read.
        """
        problems = []
        for name in (LAST, PREVIOUS):
            path = self.folder / name
            if not path.exists():
                continue
            try:
                state: dict[str, Any] = load_torch(path)
            except UserError as error:
                problems.append(error)
                continue
            if problems:
                _LOGGER.warning("%s; going on from the one before it, %s", problems[0], path)
                # Otherwise the next save would keep the damaged one as the previous, in place of the good one.
                os.replace(self.folder / LAST, self.folder / "damaged.pt")
            return state
        if problems:
            raise problems[0]
        return None
