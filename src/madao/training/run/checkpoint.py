"""Files of checkpoints that survive a crash at any moment: the last one, and the one before it.

`Run.state_dict` decides what a checkpoint contains.
"""

import logging
import os
from pathlib import Path
from typing import Any

from madao.errors import DamagedFileError
from madao.files import read_torch, save_torch, sync_folder

_LOGGER = logging.getLogger("madao")

LAST = "last.pt"
PREVIOUS = "previous.pt"
DAMAGED = "damaged.pt"


class Checkpoints:
    """The checkpoints of a run: the last one, and the one before it.

    Args:
        folder: The folder of the checkpoints.
        writes: Whether this process writes.
    """

    def __init__(self, folder: Path, writes: bool = True) -> None:
        self.folder, self.writes = folder, writes
        self._last_is_damaged = False

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
            # A damaged checkpoint must not take the place of the good one before it.
            os.replace(last, self.folder / (DAMAGED if self._last_is_damaged else PREVIOUS))
            self._last_is_damaged = False
        # A process that is killed here leaves only the previous one, which `load` finds.
        os.replace(arriving, last)
        sync_folder(self.folder)

    def keep_last_only(self) -> None:
        """Remove the previous checkpoint, which a run that has ended does not need."""
        if self.writes:
            (self.folder / PREVIOUS).unlink(missing_ok=True)

    def load(self) -> dict[str, Any] | None:
        """Return the newest checkpoint that can be read; None if there is no checkpoint. No file changes.

        Raises:
            DamagedFileError: There are checkpoints, and all of them are damaged.
            OSError: A checkpoint cannot be opened, which does not mean that it is damaged.
        """
        damaged = []
        for name in (LAST, PREVIOUS):
            path = self.folder / name
            try:
                state: Any = read_torch(path)
                if not isinstance(state, dict):
                    raise DamagedFileError(f"{path} holds a {type(state).__name__}, expected a checkpoint")
            except FileNotFoundError:
                continue
            except DamagedFileError as error:
                damaged.append(error)
                continue
            if damaged:
                _LOGGER.warning("%s; going on from the one before it, %s", damaged[0], path)
            self._last_is_damaged = bool(damaged)
            return state
        if damaged:
            raise damaged[0]
        return None
