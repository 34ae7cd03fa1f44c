"""Fixtures of image files."""

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch

from madao.data import ImageFiles
from tests.helpers.image_files import write_image


@pytest.fixture
def files(tmp_path: Path) -> ImageFiles:
    """Twenty-three PNG files of side 8; image i is grey of level 10 i, its label i modulo 3."""
    paths = [tmp_path / f"{i}.png" for i in range(23)]
    for i, path in enumerate(paths):
        write_image(path, 10 * i, (8, 8))
    return ImageFiles(paths, torch.arange(23) % 3, side=8)


@pytest.fixture
def damage() -> Callable[[Sequence[Path]], None]:
    """Overwrite files with noise."""

    def overwrite(paths: Sequence[Path]) -> None:
        for path in paths:
            path.write_bytes(np.random.default_rng(0).bytes(100))

    return overwrite
