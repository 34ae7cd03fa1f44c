"""Runs on small folders of photos, and their photos in every form that files have."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from madao.config.train_config import AugmentConfig, DataConfig, ModelConfig, TaskConfig, TrainConfig
from madao.text import printable
from madao.training.builders.run import build_run
from madao.training.trainer import Trainer

CLASSES = ('cat, "big"', "dog\x1b[2J", "öwl")  # as hostile to a table, a CSV file and a terminal as folders allow
NAMES = tuple(map(printable, CLASSES))
"""The classes as a run calls them."""


def photo(seed: int, size: tuple[int, int]) -> Image.Image:
    """Return a noisy picture, smooth enough for JPEG."""
    values = np.random.default_rng(seed).integers(0, 256, (6, 5, 3), dtype=np.uint8)
    return Image.fromarray(values).resize(size, Image.Resampling.BICUBIC)


def save_every_form(folder: Path) -> list[Path]:
    """Write a photo as RGB, grey, transparent, palette, CMYK and turned files; return their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    turned = Image.Exif()
    turned[0x0112] = 6
    forms: list[tuple[str, str, dict[str, Any]]] = [
        ("small.jpg", "RGB", {}),
        ("grey.jpg", "L", {}),
        ("grey.png", "L", {}),
        ("clear.png", "RGBA", {}),
        ("palette.gif", "P", {}),
        ("palette.png", "P", {"transparency": 0}),
        ("print.jpg", "CMYK", {}),
        ("turned.jpg", "RGB", {"exif": turned}),
        ("turned.tiff", "RGB", {"exif": turned}),
        ("web.webp", "RGB", {}),
    ]
    for number, (name, mode, options) in enumerate(forms):
        photo(number, (70, 45)).convert(mode).save(folder / name, **options)
    photo(99, (700, 450)).save(folder / "large.jpg")  # Pillow decodes it at a part of its size
    return sorted(folder.iterdir())


def write_photos(root: Path) -> Path:
    """Write photos of three classes, with a test split in every form that files have."""
    for split, count in (("train", 6), ("val", 2)):
        for label, name in enumerate(CLASSES):
            (root / split / name).mkdir(parents=True)
            for number in range(count):
                photo(1000 * label + 10 * count + number, (50, 41 + label)).save(root / split / name / f"{number}.png")
    for label, name in enumerate(CLASSES):
        for path in save_every_form(root / "test" / name):
            if label and path.name != "grey.jpg":
                path.unlink()
    return root


def train(root: Path | None, out: Path, model: str | None, size: int | None = 24, **changes: Any) -> Path:
    """Train a run for two epochs, and return its directory."""
    settings: dict[str, Any] = {
        "data": DataConfig(root=None if root is None else str(root), size=size, workers=0),
        "model": ModelConfig(model),
        "augment": AugmentConfig(method="uniform"),
        "task": TaskConfig(),
        "epochs": 2,
        "batch_size": 6,
        "logger": "none",
        "device": "cpu",
        "out": str(out),
    }
    config = dataclasses.replace(TrainConfig(**settings), **changes)
    Trainer(build_run(config)).fit()
    return out
