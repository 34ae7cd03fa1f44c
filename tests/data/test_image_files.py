"""Images in files."""

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch
from PIL import Image
from torch import Tensor

from madao.data import ImageFiles
from madao.data.lazy_images import SkippedImage
from madao.errors import DataError

Damage = Callable[[Sequence[Path]], None]


def picture(image: Tensor) -> Image.Image:
    return Image.fromarray(image.permute(1, 2, 0).numpy())


def test_unreadable_files_are_named_or_left_out(tmp_path: Path, photographs: list[Tensor], damage: Damage) -> None:
    noise, truncated, missing = (tmp_path / f"{name}.jpg" for name in ("noise", "truncated", "missing"))
    damage([noise])
    picture(photographs[0]).save(truncated)
    truncated.write_bytes(truncated.read_bytes()[:5000])
    broken = tmp_path / "broken.png"
    picture(photographs[0]).save(broken)
    broken.write_bytes(broken.read_bytes()[:40])
    for path in (noise, truncated, missing, broken):
        files = ImageFiles([path], torch.tensor([0]), side=32)
        with pytest.raises(DataError, match=rf"^cannot read {path} as an image \(.*\); .* `data\.on_error=skip`$"):
            files.load([0])
        images, readable = ImageFiles([path], torch.tensor([0]), side=32, on_error="skip").load([0])
        assert images.shape == (0, 3, 32, 32)
        assert readable == []


def test_load_tells_which_images_it_read(files: ImageFiles, damage: Damage) -> None:
    damage([files.paths[3]])
    skipping = ImageFiles(files.paths, files.labels, 8, on_error="skip")
    images, readable = skipping.load([4, 3, 2])
    assert images[:, 0, 0, 0].tolist() == [40, 20]
    assert readable == [0, 2]
    part = skipping.subset(torch.tensor([2, 3]))
    assert part.on_error == "skip"
    assert part.labels.tolist() == [2, 0]
    assert part.load([0, 1])[1] == [0]


@pytest.mark.parametrize("workers", [0, 2])
def test_decode_all(tmp_path: Path, files: ImageFiles, damage: Damage, workers: int) -> None:
    pixels, skipped = files.decode_all(workers)
    assert skipped == []
    assert torch.equal(pixels.images, files.load(range(23))[0])
    assert torch.equal(pixels.labels, files.labels)
    damage([files.paths[3], files.paths[20]])
    with pytest.raises(DataError, match=r"3\.png"):
        files.decode_all(workers)
    repeated = ImageFiles(files.paths * 3, files.labels.repeat(3), 8, on_error="skip")  # more than one batch
    pixels, skipped = repeated.decode_all(workers)
    assert skipped == [SkippedImage(str(files.paths[i]), "unknown format") for i in (3, 20)] * 3
    kept = [i for i in range(23) if i not in (3, 20)]
    assert pixels.images[:, 0, 0, 0].tolist() == [10 * i for i in kept] * 3
    assert pixels.labels.tolist() == [i % 3 for i in kept] * 3


def test_mistakes() -> None:
    with pytest.raises(DataError, match="side must be at least 1, got 0"):
        ImageFiles([], torch.zeros(0, dtype=torch.int64), side=0)
    with pytest.raises(DataError):
        ImageFiles([], torch.zeros(1, dtype=torch.int64), side=8)
    pixels, skipped = ImageFiles([], torch.zeros(0, dtype=torch.int64), side=8).decode_all()
    assert len(pixels) == len(skipped) == 0
