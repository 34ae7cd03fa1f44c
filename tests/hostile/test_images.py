"""Image files made to hang, to start programs or to fill the memory: each is left out or named, and nothing else."""

import io
import os
import re
import socket
import struct
import subprocess
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import EpsImagePlugin, Image

from madao.cli import main
from madao.data import DATASETS, DatasetRequest, GpuDecodedImages, ImageFiles
from madao.data.decoding import decode
from madao.data.image_formats import FORMATS, ImageTooLargeError, open_image
from madao.data.lazy_images import OnError
from madao.errors import DataError
from tests.helpers.image_files import write_image
from tests.helpers.limits import time_limit

EPS = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 40 40\nshowpage\n%%EOF\n"
FOREIGN = ("EPS", "TGA", "ICO", "SGI", "PCX", "MSP", "XBM", "DDS", "SPIDER", "BLP", "ICNS", "PALM", "PDF")


def picture(side: int = 40, mode: str = "RGB") -> Image.Image:
    pixels = np.random.default_rng(side).integers(0, 256, (side, side, 3), dtype=np.uint8)
    return Image.fromarray(pixels).convert(mode)


def encoded(format: str, side: int = 40, mode: str = "RGB") -> bytes:
    file = io.BytesIO()
    picture(side, mode).save(file, format)
    return file.getvalue()


def files(paths: list[Path], on_error: OnError = "skip") -> ImageFiles:
    return ImageFiles(paths, torch.zeros(len(paths), dtype=torch.int64), 16, on_error)


@pytest.fixture
def ghostscript(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file that appears if Ghostscript is started."""
    started, program = tmp_path / "started", tmp_path / "bin" / "gs"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\ntouch {started}\nexit 1\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(program.parent), prepend=os.pathsep)
    monkeypatch.setattr(EpsImagePlugin, "gs_binary", None)
    return started


def test_the_trap_for_ghostscript_works(ghostscript: Path) -> None:
    with pytest.raises(subprocess.CalledProcessError), Image.open(io.BytesIO(EPS)) as image:
        image.load()
    assert ghostscript.exists()


def test_postscript_reaches_no_other_program(ghostscript: Path, tmp_path: Path) -> None:
    root = tmp_path / "data"
    write_image(root / "images" / "1.png", 0)
    (root / "masks").mkdir()
    picture(10, "L").resize((12, 10)).save(root / "masks" / "1.png")
    for place, name in ((tmp_path, "x.jpg"), (root / "images", "2.png"), (root / "masks", "2.png")):
        (place / name).write_bytes(EPS)
    images = files([tmp_path / "x.jpg"])
    assert images.load([0])[1] == []
    assert GpuDecodedImages(images, torch.device("cpu")).pack([0]).packed == []
    assert main(["preview", f"--images={tmp_path / 'x.jpg'}", f"--output={tmp_path / 'sheet.png'}"]) == 2
    with pytest.raises(DataError, match="unknown format"):
        DATASETS["masks"](DatasetRequest(root, side=8))
    assert not ghostscript.exists()


@pytest.mark.parametrize("format", FOREIGN)
def test_other_formats_are_not_opened(format: str) -> None:
    data = encoded(format, mode="1" if format in ("MSP", "XBM", "PALM") else "P" if format == "BLP" else "RGB")
    with pytest.raises(ValueError, match=r"^unknown format$"):
        open_image(data)


@pytest.mark.parametrize("format", FORMATS)
def test_known_formats_are_opened_whatever_their_name(format: str, tmp_path: Path) -> None:
    (tmp_path / "x.gif").write_bytes(encoded(format))
    assert files([tmp_path / "x.gif"]).load([0])[1] == [0]


def pipe(path: Path) -> None:
    os.mkfifo(path)


def device(path: Path) -> None:
    path.symlink_to("/dev/zero")


def unix_socket(path: Path) -> None:
    here = Path.cwd()
    os.chdir(path.parent)  # its name may have few letters
    try:
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(path.name)
    finally:
        os.chdir(here)


def folder(path: Path) -> None:
    path.mkdir()


def itself(path: Path) -> None:
    path.symlink_to(path)


@pytest.mark.parametrize("make", [pipe, device, unix_socket, folder, itself])
def test_only_regular_files_are_read(tmp_path: Path, make: Callable[[Path], None]) -> None:
    path = tmp_path / "x.jpg"
    make(path)
    with time_limit():
        assert files([path]).load([0])[1] == []
        with pytest.raises(DataError, match=f"^cannot read {re.escape(str(path))} as an image"):
            files([path], "stop").load([0])


def png_claiming(side: int) -> bytes:
    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = chunk(b"IHDR", struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + header + chunk(b"IDAT", zlib.compress(bytes(10**6))) + chunk(b"IEND", b"")


def gif_claiming(side: int) -> bytes:
    data = bytearray(encoded("GIF"))
    data[6:10] = struct.pack("<HH", side, side)
    return bytes(data)


def bmp_claiming(side: int) -> bytes:
    data = bytearray(encoded("BMP"))
    data[18:26] = struct.pack("<ii", side, side)
    return bytes(data)


def ppm_claiming(side: int) -> bytes:
    return b"P6 %d %d 255\n" % (side, side) + bytes(1000)


BOMBS = [png_claiming(60_000), gif_claiming(60_000), bmp_claiming(60_000), ppm_claiming(60_000)]


@pytest.mark.parametrize("data", BOMBS)
@pytest.mark.parametrize("on_error", ["stop", "skip"])
def test_an_image_larger_than_the_limit_is_left_out(data: bytes, on_error: OnError, tmp_path: Path) -> None:
    write_image(tmp_path / "1.png", 50)
    (tmp_path / "2.png").write_bytes(data)
    images = files([tmp_path / "1.png", tmp_path / "2.png"], on_error)
    with time_limit():
        decoded, skipped = images.decode_all()
    assert len(decoded) == 1
    assert [image.name for image in skipped] == [str(tmp_path / "2.png")]
    assert "3,600,000,000 pixels" in skipped[0].reason
    assert "`data.max_pixels`" in skipped[0].reason


def test_a_jpeg_larger_than_the_limit_is_decoded_smaller() -> None:
    file = io.BytesIO()
    photograph = Image.linear_gradient("L").resize((800, 640)).convert("RGB")
    photograph.save(file, "JPEG")
    data = file.getvalue()
    whole, small = decode(data, 400), decode(data, 400, max_pixels=100_000)
    assert whole.shape == small.shape == (3, 400, 400)
    assert (whole.float() - small.float()).abs().mean() < 2
    with pytest.raises(ImageTooLargeError, match="512,000 pixels"):
        decode(data, 400, max_pixels=7_000)  # 8,000 at an eighth
    png = io.BytesIO()
    photograph.save(png, "PNG")
    with pytest.raises(ImageTooLargeError, match="512,000 pixels, at most 100,000 are decoded"):
        decode(png.getvalue(), 400, max_pixels=100_000)


def test_a_file_larger_than_any_image_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "x.png"
    with path.open("wb") as file:
        file.write(encoded("PNG"))
        file.truncate(2**42)  # sparse: it takes no space
    with time_limit():
        _, skipped = files([path]).decode_all()
    assert "4,398,046,511,104 bytes" in skipped[0].reason


def attack(format: str, trials: int) -> tuple[int, int]:
    """Decode damaged versions of an image; return how many were tried, and how many gave an image."""
    rng = np.random.default_rng(FORMATS.index(format))
    data = encoded(format)
    readable = 0
    for trial in range(trials):
        damaged = bytearray(data)
        for place in rng.integers(0, min(len(data), 400) if trial % 2 else len(data), 1 + trial % 5):
            damaged[place] = rng.integers(0, 256)
        if trial % 3 == 0:
            damaged = damaged[: rng.integers(0, len(data))]
        with time_limit():
            try:
                decoded = decode(bytes(damaged), 16, max_pixels=10**6)
            except Exception:  # as the reader of a data set, which takes them for unreadable
                continue
        assert decoded.shape == (3, 16, 16)
        readable += 1
    return trials, readable


@pytest.mark.filterwarnings("ignore")  # Pillow warns about some of them
@pytest.mark.parametrize("format", FORMATS)
def test_damaged_images_give_an_image_or_an_error(format: str) -> None:
    tried, readable = attack(format, 60)
    assert readable < tried


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("format", FORMATS)
def test_many_damaged_images_give_an_image_or_an_error(format: str) -> None:
    tried, readable = attack(format, 5_000)
    print(f"{format}: {tried} damaged files, {readable} gave an image, {tried - readable} an error")
    assert readable < tried
