"""Decoding, against Pillow at full size, torchvision's resize, and by hand."""

import io
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image, ImageOps
from torch import Tensor
from torchvision.transforms import functional as TF

from madao.data import decoding
from madao.data.decoding import decode, gpu_decode_error, plain_jpeg

CPU = torch.device("cpu")


def picture(image: Tensor) -> Image.Image:
    return Image.fromarray(image.permute(1, 2, 0).numpy())


def encoded(image: Image.Image, format: str = "JPEG", orientation: int | None = None, **options: Any) -> bytes:
    file = io.BytesIO()
    if orientation is not None:
        options["exif"] = Image.Exif()
        options["exif"][0x0112] = orientation
    image.save(file, format, **options)
    return file.getvalue()


def reference(data: bytes, side: int) -> Tensor:
    """The slow and obvious way: all of it, upright, in RGB, the middle, scaled, by Pillow alone."""
    with Image.open(io.BytesIO(data)) as image:
        upright = ImageOps.exif_transpose(image).convert("RGB")
    cut = min(upright.size)
    left, top = (upright.width - cut) // 2, (upright.height - cut) // 2
    middle = upright.crop((left, top, left + cut, top + cut))
    return torch.from_numpy(np.array(middle.resize((side, side), Image.Resampling.BILINEAR))).permute(2, 0, 1)


def farthest(one: Tensor, other: Tensor) -> int:
    return int((one.int() - other.int()).abs().max())


@pytest.mark.parametrize("tall", [False, True])
def test_equals_torchvisions_resize_and_centre_crop(photographs: list[Tensor], tall: bool) -> None:
    photograph = picture(photographs[0]).resize((384, 256))  # to a side of 64 exactly a quarter, so crops agree
    photograph = photograph.transpose(Image.Transpose.TRANSPOSE) if tall else photograph
    expected = TF.center_crop(TF.resize(photograph, [64]), [64, 64])
    result = decode(encoded(photograph, "PNG"), 64)
    assert result.dtype == torch.uint8
    # At the edge torchvision, which cuts last, looks at what it will cut off.
    assert farthest(result[..., 1:-1, 1:-1], TF.pil_to_tensor(expected)[..., 1:-1, 1:-1]) <= 1


@pytest.mark.parametrize("orientation", [None, *range(1, 9)])
@pytest.mark.parametrize("mode", ["RGB", "L", "CMYK"])
@pytest.mark.parametrize("format", ["JPEG", "TIFF"])
def test_equals_pillow(photographs: list[Tensor], mode: str, orientation: int | None, format: str) -> None:
    photograph = picture(photographs[1]).resize((300, 200)).convert(mode)
    data = encoded(photograph, format, orientation)
    assert farthest(decode(data, 128), reference(data, 128)) <= 1


@pytest.mark.parametrize(
    ("mode", "side", "asked"), [("RGB", 128, True), ("L", 128, True), ("CMYK", 128, False), ("RGB", 100, False)]
)
def test_torchvision_decodes_small_jpegs_and_pillow_the_rest(
    photographs: list[Tensor], monkeypatch: pytest.MonkeyPatch, mode: str, side: int, asked: bool
) -> None:
    """Pillow also decodes everything if torchvision's decoder is missing."""
    calls: list[int] = []

    def missing(files: list[Tensor], device: torch.device) -> None:
        calls.append(len(files))
        raise ImportError("cannot import name 'decode_jpeg'")

    monkeypatch.setattr(decoding, "jpegs", missing)
    data = encoded(picture(photographs[0]).resize((300, 200)).convert(mode), orientation=6)
    decoded = decode(data, side)
    assert side == 100 or farthest(decoded, reference(data, side)) <= 1  # at 100, Pillow decodes at half the size
    assert calls == [1] * asked


def test_a_large_jpeg_is_decoded_small_and_looks_the_same(photographs: list[Tensor]) -> None:
    data = encoded(picture(photographs[0]), quality=95)
    with Image.open(io.BytesIO(data)) as quarter:
        quarter.draft(None, (64, 64))
        assert quarter.size == (160, 107)  # a quarter of 640 × 427, still above 64
        pixels = torch.from_numpy(np.array(quarter)).permute(2, 0, 1)
    small = decode(data, 64)
    assert torch.equal(small, decoding.square(pixels, 64))
    assert (small.float() - reference(data, 64).float()).abs().mean() < 4


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGBA", "CMYK", "I;16"])
def test_every_mode_becomes_rgb(mode: str) -> None:
    grey = Image.new("L", (8, 8), 255)
    if mode == "I;16":
        data = encoded(Image.fromarray(np.full((8, 8), 0xFF00, dtype=np.uint16)), "PNG")
    elif mode == "P":  # transparency as bytes, about which Pillow warns
        data = encoded(grey.convert("P"), "PNG", transparency=b"\x00" * 256)
    elif mode == "RGBA":  # transparent, but white underneath
        data = encoded(Image.new("RGBA", (8, 8), (255, 255, 255, 0)), "PNG")
    else:
        image = grey.convert("RGB" if mode == "CMYK" else "L").convert(mode)
        data = encoded(image, "TIFF" if mode == "CMYK" else "PNG")
    assert torch.equal(decode(data, 8), torch.full((3, 8, 8), 255, dtype=torch.uint8))


def test_sixteen_bits_keep_their_shades() -> None:
    sixteen = Image.fromarray(np.full((8, 8), 100 * 256 + 7, dtype=np.uint16))
    assert decode(encoded(sixteen, "PNG"), 8).unique().tolist() == [100]
    with pytest.raises(ValueError, match="its pixels have 32 bits, mode F; expected 8 or 16"):
        decode(encoded(Image.new("F", (8, 8), 0.5), "TIFF"), 8)


@pytest.mark.parametrize("side", [100, 128])  # by Pillow, by torchvision
def test_damage_is_pillows_to_judge(photographs: list[Tensor], side: int) -> None:
    data = encoded(picture(photographs[0]).resize((300, 200)))
    for broken in (data[: len(data) // 2], b"noise" * 20, b""):
        with pytest.raises((OSError, ValueError), match=r"truncated|unknown format"):
            decode(broken, side)


def test_a_gpu_decodes_only_what_nvjpeg_decodes_correctly() -> None:
    image = Image.new("RGB", (30, 20))
    assert plain_jpeg(encoded(image, orientation=6)) == (6, 600)
    assert plain_jpeg(encoded(image.convert("L"))) == (1, 600)
    assert plain_jpeg(encoded(image.convert("CMYK"))) is None
    assert plain_jpeg(encoded(image, "PNG")) is None
    assert plain_jpeg(encoded(image)[:-2]) is None  # cut off: nvJPEG would make up the rest


@pytest.mark.parametrize("error", [None, "torchvision not compiled with nvJPEG support"])
def test_a_gpu_that_cannot_decode_says_why(monkeypatch: pytest.MonkeyPatch, error: str | None) -> None:
    def decode_or_fail(files: list[Tensor], device: torch.device) -> list[Tensor]:
        assert device.type == "cuda"
        if error is not None:
            raise RuntimeError(error.replace(" ", "\n", 1))
        return files

    monkeypatch.setattr(decoding, "jpegs", decode_or_fail)
    assert gpu_decode_error(torch.device("cuda")) == error
    assert gpu_decode_error(CPU) == "the device is cpu"


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_gpu_decodes_the_same(photographs: list[Tensor]) -> None:
    gpu = torch.device("cuda")
    assert gpu_decode_error(gpu) is None
    data = encoded(picture(photographs[0]).resize((300, 200)), subsampling=0)  # how colours are spread differs
    whole = decoding.jpegs([torch.frombuffer(bytearray(data), dtype=torch.uint8)], gpu)[0]
    assert farthest(decoding.square(whole, 128).cpu(), decode(data, 128)) <= 2
