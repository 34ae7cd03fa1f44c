"""Files: written whole or not at all, also after a power cut, and read only if reading them ends."""

import errno
import os
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from errno import EINVAL
from io import BufferedReader, FileIO
from pathlib import Path
from stat import S_ISREG
from typing import IO, Any

import torch

from madao.errors import DamagedFileError, UserError, first_line
from madao.text import printable

_DOS_FOLDER = 0x10
"""The bit of a zip member's attributes that marks a folder."""


@contextmanager
def replacing(path: Path, concurrent: bool = False) -> Iterator[IO[bytes]]:
    """Open a temporary file beside `path`; rename it to `path` once it is written and synced.

    An exception removes the temporary file and leaves `path` unchanged. Missing folders are created. Devices and pipes
    cannot be replaced, so they are written directly.

    Args:
        path: The file to replace.
        concurrent: Whether other processes may write `path` now. The temporary file then has a name of this process;
            otherwise its name is fixed, so that the next write overwrites the one that a killed process left.

    Raises:
        OSError: The file cannot be written. The error names it, also where the system does not.

    Example:
        >>> with replacing(folder / "result.json") as file:  # doctest: +SKIP
        ...     file.write(b"{}")
    """
    with naming(path):
        if path.exists() and not (path.is_file() or path.is_dir()):
            with path.open("wb") as file:
                yield file
            return
        _make_folder(path.parent)
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


def _make_folder(folder: Path) -> None:
    """Create a folder if it is missing. If a file has its place, the system only says that it exists."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except FileExistsError as error:
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), error.filename) from None


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Add `path` to system errors that name no file, such as those of a full disk."""
    try:
        yield
    except OSError as error:
        if error.errno is not None and error.filename is None:
            error.filename = str(path)
        raise


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
        try:
            torch.save(state, file)
        except RuntimeError as error:
            if isinstance(error.__context__, OSError):  # torch hides a full disk behind an error of its own
                raise error.__context__ from None
            raise


def load_torch(path: Path) -> Any:
    """Return the tensors and plain values of a file, on the CPU; no code in the file can run.

    Raises:
        UserError: The file is missing, cannot be opened or is damaged, or holds more than tensors and plain values.
    """
    try:
        return read_torch(path)
    except FileNotFoundError:
        raise UserError(f"there is no checkpoint {path}") from None
    except OSError as error:
        raise UserError(f"cannot read the checkpoint {path}: {error.strerror or error}") from None


def read_torch(path: Path) -> Any:
    """Load a file by `load_torch`. Errors of the system pass through.

    Raises:
        OSError: The file is missing or cannot be opened.
        DamagedFileError: The file is damaged, or holds more than tensors and plain values.
    """
    with naming(path), path.open("rb") as file:  # opened once: a rename meanwhile must not mix two files
        try:
            check_archive(file)
            file.seek(0)
            return torch.load(file, map_location="cpu", weights_only=True)
        except Exception as error:  # zip, pickle and torch have an error each for a damaged file
            raise DamagedFileError(
                f"cannot read the checkpoint {path}: it is damaged, or holds more than tensors and plain values "
                f"({printable(first_line(error), 120)})"
            ) from None


def check_archive(file: IO[bytes]) -> None:
    """Raise unless the checksums of a file by `torch.save` are right; `torch.load` does not look at them.

    Files in the format of before torch 1.6, or saved with `torch.serialization.set_crc32_options(False)`, have none.
    """
    if file.read(4) != b"PK\3\4":
        return
    with zipfile.ZipFile(file) as archive:
        members = archive.infolist()
        if not any(member.CRC for member in members):
            return
        if not all(map(_is_plain, members)):
            raise zipfile.BadZipFile("its directory is not one that torch writes")
        damaged = archive.testzip()
    if damaged is not None:
        raise zipfile.BadZipFile(f"{damaged} does not have the checksum that was saved with it")


def _is_plain(member: zipfile.ZipInfo) -> bool:
    """Return whether torch reads as many bytes of a member as the checksum covers.

    Of what is marked as a folder, torch reads nothing, and leaves the tensor as it finds it in memory.
    """
    stored = member.compress_type == zipfile.ZIP_STORED and member.file_size == member.compress_size
    return stored and not member.external_attr & _DOS_FOLDER
