"""Opening of encoded images: only of known formats, and only as large as memory allows."""

import io
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from PIL import Image

FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "PPM", "AVIF", "JPEG2000")
"""The formats to open, whatever a file is called. Pillow knows more; for EPS it starts another program, Ghostscript."""

MAX_PIXELS = 178_956_970
"""The default of the largest number of pixels to decode. Pillow refuses larger images, too."""

_JPEG_SCALES = (1, 2, 4, 8)
"""Pillow decodes a JPEG at 1 over one of these."""


_BYTES_PER_PIXEL = 16


class ImageTooLargeError(ValueError):
    """An image with more pixels than the limit."""


def open_image(data: bytes) -> "Image.Image":
    """Open an encoded image of one of `FORMATS`. Pillow decodes it later; call `limit_pixels` before.

    `PIL.Image.open` does the same, but refuses large JPEG files before they can be decoded smaller.

    Raises:
        Exception: Any error of Pillow's readers, or a ValueError about an unknown format.
    """
    from PIL import Image

    Image.init()
    for name in FORMATS:
        if name not in Image.OPEN:  # an older Pillow
            continue
        reader, accepts = Image.OPEN[name]
        if accepts is not None and accepts(data[:16]) is not True:  # a text says which library is missing
            continue
        try:
            return reader(io.BytesIO(data), "")
        except Image.DecompressionBombError as error:
            raise ImageTooLargeError(str(error)) from None
        except SyntaxError:  # the file has only the first bytes of the format
            continue
    raise ValueError("unknown format")


def limit_bytes(count: int, max_pixels: int) -> None:
    """Raise an ImageTooLargeError if an encoded image needs more memory than the largest image without compression."""
    if count > _BYTES_PER_PIXEL * max_pixels:
        raise ImageTooLargeError(
            f"it has {count:,} bytes, more than {_BYTES_PER_PIXEL} for each pixel of `data.max_pixels`"
        )


def limit_pixels(image: "Image.Image", max_pixels: int, side: int | None = None) -> None:
    """Let Pillow decode a JPEG smaller if it is too large, or at least twice as large as needed.

    Args:
        image: An image that is not decoded yet.
        max_pixels: The largest number of pixels to decode.
        side: The smallest height and width that the caller needs. By default those of the image.

    Raises:
        ImageTooLargeError: The image has more pixels, and its format cannot be decoded smaller.
    """
    pixels = image.width * image.height
    scale = next((scale for scale in _JPEG_SCALES if pixels <= max_pixels * scale**2), _JPEG_SCALES[-1])
    width, height = (max(min(length if side is None else side, length // scale), 1) for length in image.size)
    image.draft(None, (width, height))
    if image.width * image.height > max_pixels:
        raise ImageTooLargeError(
            f"it has {pixels:,} pixels, at most {max_pixels:,} are decoded; raise `data.max_pixels`"
        )
