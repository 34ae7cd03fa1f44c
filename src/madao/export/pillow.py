"""The operations on PIL images of mode L or RGB, with Pillow only.

The file that `madao export --to python` writes contains these functions, so each must be readable alone. Tone
operations and blends equal `madao.ops` on uint8 to the last bit, geometric operations to one level.
"""

import math
from collections.abc import Callable

from PIL import Image, ImageChops, ImageEnhance, ImageOps

Picture = Image.Image


def affine(image: Picture, coefficients: tuple[float, ...], fill: tuple[int, ...]) -> Picture:
    """Show input (a x + b y + c, d x + e y + f) at output (x, y), bilinearly, with the colour `fill` outside."""
    a, b, c, d, e, f = coefficients
    colour = fill[0] if image.mode == "L" else fill if len(fill) == 3 else fill * 3
    # With a border of one pixel in this colour, the edge fades instead of being cut.
    framed = ImageOps.expand(image, 1, colour)
    moved = (a, b, c + 1, d, e, f + 1)
    return framed.transform(image.size, Image.Transform.AFFINE, moved, Image.Resampling.BILINEAR, fillcolor=colour)


def shear_x(image: Picture, shear: float, fill: tuple[int, ...]) -> Picture:
    """Shear horizontally: lower rows read from further right."""
    return affine(image, (1, shear, 0, 0, 1, 0), fill)


def shear_y(image: Picture, shear: float, fill: tuple[int, ...]) -> Picture:
    """Shear vertically: columns further right read from further down."""
    return affine(image, (1, 0, 0, shear, 1, 0), fill)


def translate_x(image: Picture, fraction: float, fill: tuple[int, ...]) -> Picture:
    """Move by a fraction of the width, to the left if it is positive."""
    return affine(image, (1, 0, fraction * image.width, 0, 1, 0), fill)


def translate_y(image: Picture, fraction: float, fill: tuple[int, ...]) -> Picture:
    """Move by a fraction of the height, upwards if it is positive."""
    return affine(image, (1, 0, 0, 0, 1, fraction * image.height), fill)


def rotate(image: Picture, degrees: float, fill: tuple[int, ...]) -> Picture:
    """Rotate about the centre, counter-clockwise if the angle is positive."""
    cosine, sine = math.cos(math.radians(degrees)), math.sin(math.radians(degrees))
    x, y = image.width / 2, image.height / 2
    return affine(image, (cosine, -sine, x - cosine * x + sine * y, sine, cosine, y - sine * x - cosine * y), fill)


def invert(image: Picture, _: float) -> Picture:
    """Return the negative."""
    return ImageChops.invert(image)


def autocontrast(image: Picture, _: float) -> Picture:
    """Stretch each channel to the full range."""
    return ImageOps.autocontrast(image)


def equalize(image: Picture, _: float) -> Picture:
    """Flatten the histogram of each channel."""
    return ImageOps.equalize(image)


def solarize(image: Picture, threshold: float) -> Picture:
    """Invert the levels at or above the threshold: 256 for none, 0 for all."""
    return image.point([i if i < threshold else 255 - i for i in range(256)] * len(image.getbands()))


def posterize(image: Picture, bits: float) -> Picture:
    """Keep the highest bits of each level; their number is rounded, half up."""
    lowest = 1 << (8 - math.floor(bits + 0.5))
    return image.point([i // lowest * lowest for i in range(256)] * len(image.getbands()))


def color(image: Picture, factor: float) -> Picture:
    """Blend with the grey image: 0 is grey, 1 the image, 2 twice as colourful."""
    return ImageEnhance.Color(image).enhance(factor)


def contrast(image: Picture, factor: float) -> Picture:
    """Blend with the mean grey: 0 is all grey, 1 the image."""
    return ImageEnhance.Contrast(image).enhance(factor)


def brightness(image: Picture, factor: float) -> Picture:
    """Blend with black: 0 is black, 1 the image."""
    return ImageEnhance.Brightness(image).enhance(factor)


def sharpness(image: Picture, factor: float) -> Picture:
    """Blend with the smoothed image: 0 is smooth, 1 the image."""
    return ImageEnhance.Sharpness(image).enhance(factor)


TONE: dict[str, Callable[[Picture, float], Picture]] = {
    "Invert": invert,
    "AutoContrast": autocontrast,
    "Equalize": equalize,
    "Solarize": solarize,
    "Color": color,
    "Posterize": posterize,
    "Contrast": contrast,
    "Brightness": brightness,
    "Sharpness": sharpness,
}
"""Operations that do not move pixels: `function(image, value)`."""

GEOMETRIC: dict[str, Callable[[Picture, float, tuple[int, ...]], Picture]] = {
    "ShearX": shear_x,
    "ShearY": shear_y,
    "TranslateX": translate_x,
    "TranslateY": translate_y,
    "Rotate": rotate,
}
"""Operations that move pixels: `function(image, value, fill)`, with `fill` in levels, one or one per channel."""

FUNCTIONS: dict[str, Callable[..., Picture]] = {**GEOMETRIC, **TONE}
