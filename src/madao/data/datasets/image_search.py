"""Search for images below folders, through links, each file once."""

import errno
import os
from pathlib import Path

from madao.data.lazy_images import OnError, SkippedImage
from madao.errors import DataError
from madao.text import counted, printable

SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".webp", ".gif", ".tif", ".tiff", ".ppm")


def is_image(path: Path) -> bool:
    """Return whether a file has the name of an image. Hidden files have not."""
    return path.name.lower().endswith(SUFFIXES) and not path.name.startswith(".")


def list_folders(root: Path) -> list[Path]:
    """Return the folders in a folder, sorted. Hidden ones are left out."""
    return sorted(path for path in root.iterdir() if path.is_dir() and not path.name.startswith("."))


class ImageSearch:
    """A search for images, which remembers what it left out.

    Args:
        on_error: Whether a folder that cannot be read raises a DataError ("stop") or is left out ("skip").

    Attributes:
        unreadable: Folders that could not be read and were left out.
        repeated: Number of links to folders and images that were found before.
    """

    def __init__(self, on_error: OnError = "stop") -> None:
        self.on_error = on_error
        self.unreadable: list[SkippedImage] = []
        self.repeated = 0

    def below(self, root: Path) -> dict[str, Path]:
        """Return the images below a folder in the order of their paths, by their real paths.

        Links are followed, after all folders that are really there. Each real folder is read once, so links may lead
        back to a folder that they are in.

        Raises:
            DataError: A folder cannot be read.
        """
        found: dict[str, Path] = {}
        read: set[str] = set()
        folders, links = [root], list[Path]()
        while folders or links:
            place = folders.pop() if folders else links.pop()
            real = os.path.realpath(place)
            if real in read:
                self.repeated += 1
                continue
            read.add(real)
            try:
                with os.scandir(place) as entries:
                    listed = sorted((entry for entry in entries if not entry.name.startswith(".")), key=_name)
            except OSError as error:
                self._refuse(place, error, needed=place == root)
                continue
            for entry in listed:
                path = place / entry.name
                if self._is_folder(entry):
                    (links if entry.is_symlink() else folders).append(path)
                elif is_image(path):
                    target = os.path.realpath(path) if entry.is_symlink() else os.path.join(real, entry.name)
                    self.repeated += target in found
                    found.setdefault(target, path)
        return dict(sorted(found.items(), key=lambda item: item[1]))

    def notes(self) -> list[str]:
        """Return a line about links that lead to images a second time, if there are any."""
        if not self.repeated:
            return []
        return [f"left out {counted(self.repeated, 'link')} to images that are there already: each counts once"]

    def _is_folder(self, entry: os.DirEntry[str]) -> bool:
        try:
            return entry.is_dir()
        except OSError as error:
            if error.errno != errno.ELOOP:  # a link to itself leads nowhere
                self._refuse(Path(entry.path), error, needed=False)
            return False

    def _refuse(self, place: Path, error: OSError, needed: bool) -> None:
        reason, name = error.strerror or str(error), printable(place)
        if needed or self.on_error == "stop":
            remedy = "" if needed else ", or skip it with `data.on_error=skip`"
            raise DataError(
                f"cannot read the folder {name} ({reason}); allow reading it or remove it{remedy}"
            ) from None
        self.unreadable.append(SkippedImage(name, reason))


def _name(entry: os.DirEntry[str]) -> str:
    return entry.name
