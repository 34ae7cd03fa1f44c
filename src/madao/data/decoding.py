"""From the bytes of a file to an upright RGB square, by whichever decoder is faster."""

import functools
import io
import warnings
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

if TYPE_CHECKING:
    from PIL import Image

_ORIENTATION = 0x0112
_UPRIGHT: dict[int, Callable[[Tensor], Tensor]] = {
    2: lambda image: image.flip(-1),
    3: lambda image: image.flip(-2, -1),
    4: lambda image: image.flip(-2),
    5: lambda image: image.transpose(-2, -1),
    6: lambda image: torch.rot90(image, -1, (-2, -1)),
    7: lambda image: image.transpose(-2, -1).flip(-2, -1),
    8: lambda image: torch.rot90(image, 1, (-2, -1)),
}
"""What EXIF's orientation asks for."""


def decode(data: bytes, side: int) -> Tensor:
    """A file as an upright RGB square, uint8 `[3, side, side]`: cut to the middle, scaled with antialiasing.

    A JPEG twice as large as the square or more is Pillow's, which decodes it at a half, a quarter or an eighth; a
    smaller one is torchvision's, which is faster at full size (`benchmarks/speed/input.py`). What torchvision cannot
    read, or is not there to, Pillow decides on. Raises whatever Pillow stumbles on: OSError, SyntaxError, struct.error.
    """
    with _open(data) as image:
        if image.format == "JPEG" and image.mode in ("RGB", "L") and min(image.size) < 2 * side:
            orientation = _orientation(image)
            try:
                whole = jpegs([torch.frombuffer(bytearray(data), dtype=torch.uint8)], torch.device("cpu"))[0]
                return upright(square(whole, side), orientation)
            except (ImportError, RuntimeError):
                pass
        image.draft(None, (side, side))
        image.load()  # which turns a TIFF upright by itself
        pixels = torch.from_numpy(np.array(_rgb(image))).permute(2, 0, 1)
        return upright(square(pixels, side), _orientation(image))


def plain_jpeg(data: bytes) -> tuple[int, int] | None:
    """Orientation and number of pixels of a JPEG that any decoder reads; None for everything else.

    nvJPEG knows no CMYK, and fills what a file that is cut off lacks without a word.
    """
    with _open(data) as image:
        plain = image.format == "JPEG" and image.mode in ("RGB", "L") and data.endswith(b"\xff\xd9")
        return (_orientation(image), image.width * image.height) if plain else None


def jpegs(files: Sequence[Tensor], device: torch.device) -> list[Tensor]:
    """JPEG files, uint8 `[bytes]` on the CPU, as uint8 `[3, H, W]` on a device; on a GPU nvJPEG decodes them.

    Raises:
        ImportError: There is no torchvision, or it decodes no more.
        RuntimeError: One of the files cannot be read.
    """
    decode_jpeg, rgb = jpeg_decoder()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # torchvision 0.29 points to TorchCodec
        decoded: list[Tensor] = decode_jpeg(list(files), mode=rgb, device=device)
    return decoded


@functools.cache
def jpeg_decoder() -> tuple[Any, Any]:
    """torchvision's, and its name for RGB. Whoever starts workers asks first: importing it takes a second in each."""
    from torchvision.io import ImageReadMode, decode_jpeg

    return decode_jpeg, ImageReadMode.RGB


def gpu_decode_error(device: torch.device) -> str | None:
    """What keeps a device from decoding JPEG files by itself, in words; None if nothing does."""
    if device.type != "cuda":
        return f"the device is {device.type}"
    from PIL import Image

    file = io.BytesIO()
    Image.new("RGB", (16, 16)).save(file, "JPEG")
    try:
        jpegs([torch.frombuffer(bytearray(file.getvalue()), dtype=torch.uint8)], device)
    except (ImportError, RuntimeError) as error:
        return " ".join(str(error).split())[:200]
    return None


def square(image: Tensor, side: int) -> Tensor:
    """The middle of an image at `side` × `side`, bilinear, antialiased: uint8 `[C, H, W]` to `[C, side, side]`."""
    return scaled(middle(image)[None], side)[0]


def middle(image: Tensor) -> Tensor:
    """The largest square about the middle, `[C, H, W]` to `[C, min(H, W), min(H, W)]`."""
    height, width = image.shape[-2:]
    cut = min(height, width)
    top, left = (height - cut) // 2, (width - cut) // 2
    return image[:, top : top + cut, left : left + cut]


def scaled(squares: Tensor, side: int) -> Tensor:
    """Squares, uint8 `[B, C, S, S]`, at `side` × `side`."""
    if not squares.is_cuda:
        return F.interpolate(squares, size=(side, side), mode="bilinear", antialias=True)
    floats = F.interpolate(squares.float(), size=(side, side), mode="bilinear", antialias=True)  # it has no uint8
    return floats.round().clamp(0, 255).to(torch.uint8)


def upright(image: Tensor, orientation: int) -> Tensor:
    """An image `[C, side, side]` turned as EXIF says; what it does not know stays."""
    turn = _UPRIGHT.get(orientation)
    return image if turn is None else turn(image)


def _open(data: bytes) -> "Image.Image":
    from PIL import Image, UnidentifiedImageError

    try:
        return Image.open(io.BytesIO(data))
    except UnidentifiedImageError:  # which would name the place of these bytes in memory
        raise ValueError("its format is not known") from None


def _orientation(image: "Image.Image") -> int:
    return int(image.getexif().get(_ORIENTATION, 1))


def _rgb(image: "Image.Image") -> "Image.Image":
    """Transparency is dropped. Where Pillow would clip 16 bits to 255, the upper 8 are taken."""
    from PIL import Image

    if image.mode.startswith("I;16"):
        image = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
    elif image.mode in ("I", "F"):
        raise ValueError(f"its pixels have 32 bits, mode {image.mode}; 8 or 16 were expected")
    elif image.mode == "P":
        image = image.convert("RGBA")  # straight to RGB Pillow warns where the palette has transparency
    return image.convert("RGB")
