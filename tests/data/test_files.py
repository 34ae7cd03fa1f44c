"""Decoding, against torchvision and by hand."""

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image, ImageOps
from torch import Tensor
from torchvision.transforms import functional as TF

from madao.data import DataError, Files
from madao.data.files import decode

Damage = Callable[[Sequence[Path]], None]


def picture(image: Tensor) -> Image.Image:
    return Image.fromarray(image.permute(1, 2, 0).numpy())


@pytest.mark.parametrize("tall", [False, True])
def test_equals_torchvisions_resize_and_centre_crop(tmp_path: Path, photographs: list[Tensor], tall: bool) -> None:
    photograph = picture(photographs[0]).resize((384, 256))  # to a side of 64 exactly a quarter, so crops agree
    photograph = photograph.transpose(Image.Transpose.TRANSPOSE) if tall else photograph
    photograph.save(tmp_path / "a.png")
    expected = TF.center_crop(TF.resize(photograph, [64]), [64, 64])
    result = decode(tmp_path / "a.png", 64)
    assert result.dtype == torch.uint8
    assert (result.int() - TF.pil_to_tensor(expected).int()).abs().max() <= 1


def test_a_large_jpeg_is_decoded_small_and_looks_the_same(
    tmp_path: Path, photographs: list[Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.jpg"
    picture(photographs[0]).save(path, quality=95)
    sizes: list[tuple[int, int]] = []
    transpose = ImageOps.exif_transpose

    def watched(image: Image.Image) -> Image.Image | None:
        sizes.append(image.size)
        return transpose(image)

    monkeypatch.setattr(ImageOps, "exif_transpose", watched)
    small = decode(path, 64).float()
    assert sizes == [(160, 107)]  # a quarter of 640 × 427, still above 64
    with Image.open(path) as whole:
        expected = TF.pil_to_tensor(ImageOps.fit(whole, (64, 64), Image.Resampling.BILINEAR)).float()
    assert (small - expected).abs().mean() < 4


def test_exif_orientation(tmp_path: Path) -> None:
    array = np.zeros((16, 16, 3), dtype=np.uint8)
    array[:8] = 255  # bright above
    for orientation, bright in ((1, (slice(0, 6), slice(None))), (3, (slice(10, 16), slice(None)))):
        exif = Image.Exif()
        exif[0x0112] = orientation
        Image.fromarray(array).save(tmp_path / "a.jpg", exif=exif, quality=100)
        assert decode(tmp_path / "a.jpg", 16)[(slice(None), *bright)].min() > 240
    exif[0x0112] = 6  # turn clockwise: what was above is on the right
    Image.fromarray(array).save(tmp_path / "a.jpg", exif=exif, quality=100)
    assert decode(tmp_path / "a.jpg", 16)[:, :, 10:].min() > 240
    assert decode(tmp_path / "a.jpg", 16)[:, :, :6].max() < 15


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGBA", "CMYK", "I;16"])
def test_every_mode_becomes_rgb(tmp_path: Path, mode: str) -> None:
    path = tmp_path / ("a.tif" if mode == "CMYK" else "a.png")
    grey = Image.new("L", (8, 8), 255)
    if mode == "I;16":
        Image.fromarray(np.full((8, 8), 0xFF00, dtype=np.uint16)).save(path)
    elif mode == "P":  # transparency as bytes, about which Pillow warns
        grey.convert("P").save(path, transparency=b"\x00" * 256)
    elif mode == "RGBA":  # transparent, but white underneath
        Image.new("RGBA", (8, 8), (255, 255, 255, 0)).save(path)
    else:
        grey.convert("RGB" if mode == "CMYK" else "L").convert(mode).save(path)
    assert torch.equal(decode(path, 8), torch.full((3, 8, 8), 255, dtype=torch.uint8))


def test_sixteen_bits_keep_their_shades(tmp_path: Path) -> None:
    Image.fromarray(np.full((8, 8), 100 * 256 + 7, dtype=np.uint16)).save(tmp_path / "a.png")
    assert decode(tmp_path / "a.png", 8).unique().tolist() == [100]
    Image.new("F", (8, 8), 0.5).save(tmp_path / "a.tif")
    with pytest.raises(DataError, match="its pixels have 32 bits, mode F; 8 or 16 were expected"):
        decode(tmp_path / "a.tif", 8)


def test_what_cannot_be_read_is_named(tmp_path: Path, photographs: list[Tensor], damage: Damage) -> None:
    noise, truncated, missing = (tmp_path / f"{name}.jpg" for name in ("noise", "truncated", "missing"))
    damage([noise])
    picture(photographs[0]).save(truncated)
    truncated.write_bytes(truncated.read_bytes()[:5000])
    broken = tmp_path / "broken.png"
    picture(photographs[0]).save(broken)
    broken.write_bytes(broken.read_bytes()[:40])
    for path in (noise, truncated, missing, broken):
        files = Files([path], torch.tensor([0]), side=32)
        with pytest.raises(DataError, match=r"--data\.on_error skip$") as caught:
            files.load([0])
        assert str(caught.value).startswith(f"cannot read {path} as an image (")
        assert "\n" not in str(caught.value)
        images, readable = Files([path], torch.tensor([0]), side=32, on_error="skip").load([0])
        assert images.shape == (0, 3, 32, 32)
        assert readable == []


def test_load_leaves_out_and_says_what_it_read(files: Files, damage: Damage) -> None:
    damage([files.paths[3]])
    skipping = Files(files.paths, files.labels, 8, on_error="skip")
    images, readable = skipping.load([4, 3, 2])
    assert images[:, 0, 0, 0].tolist() == [40, 20]
    assert readable == [0, 2]
    part = skipping.subset(torch.tensor([2, 3]))
    assert part.on_error == "skip"
    assert part.labels.tolist() == [2, 0]
    assert part.load([0, 1])[1] == [0]


@pytest.mark.parametrize("workers", [0, 2])
def test_decode_all(tmp_path: Path, files: Files, damage: Damage, workers: int) -> None:
    pixels, skipped = files.decode_all(workers)
    assert skipped == []
    assert torch.equal(pixels.images, files.load(range(23))[0])
    assert torch.equal(pixels.labels, files.labels)
    damage([files.paths[3], files.paths[20]])
    with pytest.raises(DataError, match=r"cannot read .*3\.png"):
        files.decode_all(workers)
    repeated = Files(files.paths * 3, files.labels.repeat(3), 8, on_error="skip")  # more than one batch
    pixels, skipped = repeated.decode_all(workers)
    assert skipped == [files.paths[3], files.paths[20]] * 3
    kept = [i for i in range(23) if i not in (3, 20)]
    assert pixels.images[:, 0, 0, 0].tolist() == [10 * i for i in kept] * 3
    assert pixels.labels.tolist() == [i % 3 for i in kept] * 3


def test_mistakes() -> None:
    with pytest.raises(DataError, match="the side of the images must be at least 1, got 0"):
        Files([], torch.zeros(0, dtype=torch.int64), side=0)
    with pytest.raises(DataError, match="one label per image, got 1 labels for 0 images"):
        Files([], torch.zeros(1, dtype=torch.int64), side=8)
    pixels, skipped = Files([], torch.zeros(0, dtype=torch.int64), side=8).decode_all()
    assert len(pixels) == len(skipped) == 0
