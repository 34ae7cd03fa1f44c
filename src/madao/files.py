"""Files: written whole or not at all, also after a power cut, and read only if reading them ends."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from errno import EINVAL
from io import BufferedReader, FileIO
from pathlib import Path
from stat import S_ISREG
from typing import IO, Any

import torch

from madao.errors import UserError


@contextmanager
def replacing(path: Path, concurrent: bool = False) -> Iterator[IO[bytes]]:
    """Open a temporary file beside `path`; rename it to `path` once it is written and synced.

    An exception removes the temporary file and leaves `path` unchanged. Missing folders are created.

    Args:
        path: The file to replace.
        concurrent: Whether other processes may write `path` now. The temporary file then has a name of this process;
            otherwise its name is fixed, so that the next write overwrites the one that a killed process left.

    Example:
        >>> with replacing(folder / "result.json") as file:  # doctest: +SKIP
        ...     file.write(b"{}")
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f"{path.name}.{os.getpid()}.part" if concurrent else f"{path.name}.part")
    try:
        with temporary.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Make a rename outlive a power cut, on systems that can open folders."""
    try:
        handle = os.open(folder, os.O_RDONLY)
    except OSError:
        return
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def open_regular(path: Path) -> BufferedReader:
    """Open a regular file for reading. Pipes, sockets and devices might block for ever or never end.

    Raises:
        OSError: The file is missing, cannot be opened, or is no regular file.
    """
    # O_NONBLOCK: opening a pipe would wait for its writer. Regular files ignore it.
    file = FileIO(path, opener=lambda name, flags: os.open(name, flags | getattr(os, "O_NONBLOCK", 0)))
    if not S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise OSError(EINVAL, "no regular file", str(path))
    return BufferedReader(file)


def save_torch(path: Path, state: Any) -> None:
    """Replace a file by tensors and plain values."""
    with replacing(path) as file:
        torch.save(state, file)


def load_torch(path: Path) -> Any:
    """Return the tensors and plain values of a file, on the CPU; no code in the file can run.

    Raises:
        UserError: The file is missing or damaged, or holds more than tensors and plain values.
    """
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError:
        raise UserError(f"there is no checkpoint {path}") from None
    except Exception as error:  # zip, pickle and torch have an error each for a damaged file
        reason = str(error).split("\n")[0][:120]
        raise UserError(
            f"cannot read the checkpoint {path}: it is damaged, or holds more than tensors and plain values ({reason})"
        ) from None
