"""Tiny images on disk."""

from pathlib import Path

from PIL import Image


def write_image(path: Path, value: int, size: tuple[int, int] = (12, 10), format: str | None = None) -> None:
    """Write an image of one grey level, which identifies it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, (value, value, value)).save(path, format)
