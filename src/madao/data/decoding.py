"""Decoding of image files into upright RGB squares, with the faster of two decoders."""

import functools
import io
import warnings
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from madao.data.image_formats import MAX_PIXELS, limit_pixels, open_image

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
"""By EXIF orientation: the function that turns an image upright."""


def decode(data: bytes, side: int, max_pixels: int = MAX_PIXELS) -> Tensor:
    """Decode a file to an upright RGB square: cropped to the centre, then resized with antialiasing.

    Pillow decodes JPEG files at least twice as large as the square, because it can decode at 1/2, 1/4 or 1/8 of their
    size. torchvision decodes smaller ones, because it is faster at full size (`benchmarks/speed/input.py`). Pillow also
    decodes all files that torchvision cannot read, and everything if torchvision is missing.

    Args:
        data: Contents of the file.
        side: Side of the square in pixels.
        max_pixels: Largest number of pixels to decode. A larger JPEG is decoded smaller.

    Returns:
        The image, uint8 `[3, side, side]`.

    Raises:
        ImageTooLargeError: The image is larger, and cannot be decoded smaller.
        Exception: Any error of Pillow's readers: OSError, ValueError, SyntaxError, struct.error and others.
    """
    with open_image(data) as image:
        small = min(image.size) < 2 * side and image.width * image.height <= max_pixels
        if small and image.format == "JPEG" and image.mode in ("RGB", "L"):
            orientation = _orientation(image)
            try:
                whole = jpegs([torch.frombuffer(bytearray(data), dtype=torch.uint8)], torch.device("cpu"))[0]
                return upright(square(whole, side), orientation)
            except (ImportError, RuntimeError):
                pass
        limit_pixels(image, max_pixels, side)
        image.load()  # this also turns a TIFF upright
        return upright(square(_pixels(image), side), _orientation(image))


def to_tensor(image: "Image.Image") -> Tensor:
    """Convert an image of Pillow to an upright RGB tensor, uint8 `[3, H, W]`."""
    return upright(_pixels(image), _orientation(image))


def decode_whole(data: bytes, max_pixels: int = MAX_PIXELS) -> Tensor:
    """Decode a file to an upright RGB tensor of its own size, uint8 `[3, H, W]`.

    Raises:
        Exception: Any error of Pillow's readers, as for `decode`.
    """
    with open_image(data) as image:
        limit_pixels(image, max_pixels)
        image.load()  # this also turns a TIFF upright
        return to_tensor(image)


def plain_jpeg(data: bytes, max_pixels: int = MAX_PIXELS) -> tuple[int, int] | None:
    """Return orientation and number of pixels of a JPEG that nvJPEG decodes correctly, and None for other files.

    nvJPEG does not support CMYK, silently invents the missing part of a truncated file, and cannot decode smaller.
    """
    with open_image(data) as image:
        plain = image.format == "JPEG" and image.mode in ("RGB", "L") and data.endswith(b"\xff\xd9")
        pixels = image.width * image.height
        return (_orientation(image), pixels) if plain and pixels <= max_pixels else None


def jpegs(files: Sequence[Tensor], device: torch.device) -> list[Tensor]:
    """Decode JPEG files on a device. On a GPU, nvJPEG decodes them.

    Args:
        files: Contents of each file, uint8 `[bytes]` on the CPU.
        device: The device that decodes.

    Returns:
        The images, uint8 `[3, H, W]` on the device.

    Raises:
        ImportError: torchvision is missing, or no longer has a decoder.
        RuntimeError: One of the files cannot be read.
    """
    decode_jpeg, rgb = jpeg_decoder()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # torchvision 0.29 points to TorchCodec
        decoded: list[Tensor] = decode_jpeg(list(files), mode=rgb, device=device)
    return decoded


@functools.cache
def jpeg_decoder() -> tuple[Any, Any]:
    """Return torchvision's JPEG decoder and its constant for RGB.

    Call it before starting worker processes: the import takes a second, which each of them would spend.
    """
    from torchvision.io import ImageReadMode, decode_jpeg

    return decode_jpeg, ImageReadMode.RGB


def gpu_decode_error(device: torch.device) -> str | None:
    """Return why a device cannot decode JPEG files, or None if it can."""
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
    """Crop an image, uint8 `[C, H, W]`, to its centre and resize it to `[C, side, side]`: bilinear, antialiased."""
    return resize(centre_square(image)[None], side)[0]


def centre_square(image: Tensor) -> Tensor:
    """Return the largest central square of an image: `[C, H, W]` to `[C, min(H, W), min(H, W)]`."""
    height, width = image.shape[-2:]
    cut = min(height, width)
    top, left = (height - cut) // 2, (width - cut) // 2
    return image[:, top : top + cut, left : left + cut]


def resize(images: Tensor, size: int | tuple[int, int]) -> Tensor:
    """Resize images, uint8 `[B, C, H, W]`, to a height and a width, or to squares."""
    if not images.is_cuda:
        return F.interpolate(images, size=size, mode="bilinear", antialias=True)
    floats = F.interpolate(images.float(), size=size, mode="bilinear", antialias=True)  # CUDA cannot resize uint8
    return floats.round().clamp(0, 255).to(torch.uint8)


def upright(image: Tensor, orientation: int) -> Tensor:
    """Turn an image `[C, side, side]` upright. Unknown orientations change nothing."""
    turn = _UPRIGHT.get(orientation)
    return image if turn is None else turn(image)


def upright_size(image: "Image.Image") -> tuple[int, int]:
    """Return width and height of an upright image, without decoding it."""
    return (image.height, image.width) if _orientation(image) in (5, 6, 7, 8) else (image.width, image.height)


def _orientation(image: "Image.Image") -> int:
    return int(image.getexif().get(_ORIENTATION, 1))


def _pixels(image: "Image.Image") -> Tensor:
    return torch.from_numpy(np.array(_rgb(image))).permute(2, 0, 1)


def _rgb(image: "Image.Image") -> "Image.Image":
    """Convert an image to RGB without transparency. Of 16 bits, keep the upper 8, where Pillow would clip to 255."""
    from PIL import Image

    if image.mode.startswith("I;16"):
        image = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
    elif image.mode in ("I", "F"):
        raise ValueError(f"its pixels have 32 bits, mode {image.mode}; expected 8 or 16")
    elif image.mode == "P":
        image = image.convert("RGBA")  # converting directly to RGB makes Pillow warn about transparent palettes
    return image.convert("RGB")
