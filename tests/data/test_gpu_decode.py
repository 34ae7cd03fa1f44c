"""Decoding on the device, with the CPU as the device: the same images as workers would give."""

import io
import re
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch
from PIL import Image
from torch import Tensor

from madao.data import Batches, GpuDecodedImages, ImageFiles, gpu_decode
from madao.data.gpu_decode import _parts
from madao.errors import DataError

CPU = torch.device("cpu")
Damage = Callable[[Sequence[Path]], None]


@pytest.fixture
def mixed(tmp_path: Path, photographs: list[Tensor]) -> ImageFiles:
    """Fourteen files of four sizes: JPEG with and without orientation, greyscale, CMYK, PNG."""
    paths = []
    for number in range(14):
        size = ((90, 60), (60, 90), (64, 64), (150, 100))[number % 4]
        image = Image.fromarray(photographs[number % 2].permute(1, 2, 0).numpy()).resize(size)
        mode, ending = (("RGB", "jpg"), ("L", "jpg"), ("CMYK", "jpg"), ("RGB", "png"), ("RGB", "jpg"))[number % 5]
        exif = Image.Exif()
        exif[0x0112] = 1 + number % 8
        paths.append(tmp_path / f"{number}.{ending}")
        image.convert(mode).save(paths[-1], exif=exif)
    return ImageFiles(paths, torch.arange(14) % 3, side=48)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("pixels", [1, 20_000, 2**25])  # decoded one by one, a few at a time, all together
def test_batches_are_those_of_workers(
    mixed: ImageFiles, workers: int, pixels: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu_decode, "_PIXELS", pixels)
    expected = list(Batches(mixed, 5, CPU, seed=3).epoch(1))
    found = list(Batches(GpuDecodedImages(mixed, CPU), 5, CPU, seed=3, workers=workers).epoch(1))
    for (images, labels), (want, wanted) in zip(found, expected, strict=True):
        # Of the sizes here Pillow decodes the largest at a half.
        assert (images.int() - want.int()).abs().float().mean() < 2
        assert images.shape == want.shape
        assert torch.equal(labels, wanted)


def test_images_are_those_of_load_where_none_is_decoded_small(mixed: ImageFiles) -> None:
    same = mixed.subset(torch.tensor([i for i in range(14) if i % 4 != 3]))
    here = GpuDecodedImages(same, CPU)
    images, places = here.unpack(here.pack([3, 1, 0, 5, 9, 2]))
    assert places == [0, 1, 2, 3, 4, 5]
    assert torch.equal(images, same.load([3, 1, 0, 5, 9, 2])[0])
    assert torch.equal(here.load([4])[0], same.load([4])[0])
    part = here.subset(torch.tensor([2, 4]))
    assert isinstance(part, GpuDecodedImages)
    assert torch.equal(part.unpack(part.pack([1]))[0], same.load([4])[0])
    assert (part.shape, len(part), part.labels.tolist()) == ((3, 48, 48), 2, same.labels[[2, 4]].tolist())


def test_the_worker_leaves_jpeg_files_alone(mixed: ImageFiles) -> None:
    batch = GpuDecodedImages(mixed, CPU).pack(list(range(14)))
    assert batch.decoded == [i for i in range(14) if i % 5 in (2, 3)]  # CMYK and PNG
    assert batch.packed == [i for i in range(14) if i % 5 not in (2, 3)]
    assert bytes(batch.data.tolist()) == b"".join(mixed.read(i) for i in batch.packed)


def damaged_inside(path: Path) -> None:
    """A header and an end, and nothing that can be decoded between them."""
    file = io.BytesIO()
    Image.effect_noise((64, 64), 80).save(file, "JPEG")
    data = bytearray(file.getvalue())
    start = data.index(b"\xff\xda")
    path.write_bytes(data[:start] + b"\xff\xd9")


def test_damaged_images_are_named_or_left_out(mixed: ImageFiles, damage: Damage) -> None:
    damage([mixed.paths[4]])  # found by the worker
    damaged_inside(mixed.paths[0])  # found by the decoder
    mixed.paths[5].write_bytes(mixed.paths[5].read_bytes()[:-200])  # cut off
    stops = GpuDecodedImages(mixed, CPU)
    for index in (4, 0, 5):
        with pytest.raises(DataError, match=re.escape(str(mixed.paths[index]))):
            stops.unpack(stops.pack([1, index]))
    skips = GpuDecodedImages(ImageFiles(mixed.paths, mixed.labels, 48, "skip"), CPU)
    images, places = skips.unpack(skips.pack([0, 1, 4, 5, 6]))
    assert places == [1, 4]
    assert torch.equal(images[0], mixed.load([1])[0][0])
    assert skips.unpack(skips.pack([0, 4]))[0].shape == (0, 3, 48, 48)
    batches = Batches(skips, 14, CPU, shuffle=False)
    assert len(next(batches.epoch(0))[1]) == 11
    assert skips.skipped == {0, 4, 5}


def test_parts_hold_so_many_pixels_or_one_image() -> None:
    found = [(part.start, part.stop) for part in _parts([4, 6, 1, 30, 5, 5, 5], 10)]
    assert found == [(0, 2), (2, 3), (3, 4), (4, 6), (6, 7)]
    assert list(_parts([], 10)) == []
