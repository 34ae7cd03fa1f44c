"""uint8 operations against Pillow: tone to the last bit, geometry to a level inside the image.

Along the image's edge geometry differs by design: the edge fades over one pixel here, and is cut in Pillow.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image, ImageEnhance, ImageOps
from torch import Tensor

from madao.ops import OPERATIONS, geometric

Picture = Image.Image
FACTORS = [0.0, 0.1, 1 / 3, 0.38, 0.5, 0.9, 1.0, 1.1, 1.62, 1.99, 2.0]
THRESHOLDS = [256.0, 255.5, 255.0, 200.3, 128.0, 97.0, 0.5, 0.0]


def kinds(photographs: list[Tensor]) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(0)

    def noise(low: int, high: int, *shape: int) -> Tensor:
        return torch.randint(low, high, shape, generator=generator, dtype=torch.uint8)

    constant = torch.full((3, 480, 640), 77, dtype=torch.uint8)
    few = torch.tensor([0, 3, 250], dtype=torch.uint8)[noise(0, 3, 3, 25, 19).long()]
    grey = photographs[0][1:2]
    return {
        "photograph 1": photographs[0],
        "photograph 2": photographs[1],
        "grey": grey,
        "noise": noise(0, 256, 3, 480, 640),
        "constant": constant,
        "narrow": noise(127, 129, 3, 480, 640),
        "three levels": few,
        "small": photographs[0][:, 100:132, 100:132],
        "tiny": noise(0, 256, 3, 2, 5),
    }


KINDS = ["photograph 1", "photograph 2", "grey", "noise", "constant", "narrow", "three levels", "small", "tiny"]
LARGE = KINDS[:6]


def to_pil(image: Tensor) -> Picture:
    array = image.permute(1, 2, 0).numpy()
    return Image.fromarray(array[..., 0] if array.shape[2] == 1 else array)


def difference(ours: Tensor, theirs: Picture) -> Tensor:
    array = np.asarray(theirs)
    expected = torch.from_numpy(np.array(array[None] if array.ndim == 2 else array.transpose(2, 0, 1)))
    return (ours.int() - expected.int()).abs()


def enhancer(name: str) -> Callable[[Picture, float], Picture]:
    return lambda picture, factor: getattr(ImageEnhance, name)(picture).enhance(factor)


TONE: dict[str, tuple[Callable[[Picture, float], Picture], list[float]]] = {
    "Invert": (lambda picture, _: ImageOps.invert(picture), [0.0]),
    "AutoContrast": (lambda picture, _: ImageOps.autocontrast(picture), [0.0]),
    "Equalize": (lambda picture, _: ImageOps.equalize(picture), [0.0]),
    # Pillow's own comparison is level < threshold, also for thresholds between two levels.
    "Solarize": (
        lambda picture, t: picture.point([i if i < t else 255 - i for i in range(256)] * len(picture.getbands())),
        THRESHOLDS,
    ),
    "Posterize": (lambda picture, bits: ImageOps.posterize(picture, int(bits)), [8.0, 7.0, 6.0, 5.0, 4.0, 2.0, 1.0]),
    **{name: (enhancer(name), FACTORS) for name in ("Color", "Contrast", "Brightness", "Sharpness")},
}


def run(name: str, image: Tensor, value: float) -> Tensor:
    operation = OPERATIONS[name]
    arguments = (torch.tensor([value]),) if operation.has_magnitude else ()
    return operation.function(image[None], *arguments)[0]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", TONE)
def test_tone_and_blends_equal_pil_to_the_last_bit(name: str, kind: str, photographs: list[Tensor]) -> None:
    image = kinds(photographs)[kind]
    reference, values = TONE[name]
    for value in values:
        assert difference(run(name, image, value), reference(to_pil(image), value)).max() == 0, value


def test_autocontrast_equals_pil_for_every_darkest_and_brightest_level() -> None:
    for low in range(255):
        rows = torch.arange(256, dtype=torch.uint8).clamp(min=low).repeat(256 - low, 1)
        rows = torch.minimum(rows, torch.arange(low, 256, dtype=torch.uint8)[:, None])  # each up to its own brightest
        ours = OPERATIONS["AutoContrast"].function(rows[:, None, None])[:, 0, 0]
        for row, result in zip(rows[1::5], ours[1::5], strict=True):
            assert difference(result[None, None], ImageOps.autocontrast(to_pil(row[None, None]))).max() == 0


def affine(*coefficients: float) -> Callable[[Picture], Picture]:
    return lambda picture: picture.transform(
        picture.size, Image.Transform.AFFINE, coefficients, Image.Resampling.BILINEAR
    )


GEOMETRIC: dict[str, tuple[Callable[[Picture, float], Picture], list[float]]] = {
    "ShearX": (lambda p, s: affine(1, s, 0, 0, 1, 0)(p), [0.0, 0.1, -0.1, 0.3, -0.3]),
    "ShearY": (lambda p, s: affine(1, 0, 0, s, 1, 0)(p), [0.0, 0.1, -0.1, 0.3, -0.3]),
    "TranslateX": (lambda p, f: affine(1, 0, f * p.width, 0, 1, 0)(p), [0.0, 0.131, -0.131, 0.28, -0.45]),
    "TranslateY": (lambda p, f: affine(1, 0, 0, 0, 1, f * p.height)(p), [0.0, 0.131, -0.131, 0.28, -0.45]),
    "Rotate": (lambda p, a: p.rotate(a, Image.Resampling.BILINEAR), [0.0, 5.0, -5.0, 18.6, -18.6, 30.0, -30.0]),
}


def well_inside(name: str, image: Tensor, value: float) -> Tensor:
    """Where every neighbour of the sampled place lies inside: there an image of ones stays one."""
    ones = torch.ones(1, 1, *image.shape[1:], dtype=torch.float64)
    return OPERATIONS[name].function(ones, torch.tensor([value], dtype=torch.float64))[0, 0] > 1 - 1e-6


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", GEOMETRIC)
def test_geometric_equal_pil_inside_to_one_level(name: str, kind: str, photographs: list[Tensor]) -> None:
    image = kinds(photographs)[kind]
    reference, values = GEOMETRIC[name]
    for value in values:
        inside = well_inside(name, image, value)
        far = difference(run(name, image, value), reference(to_pil(image), value))[:, inside]
        assert far.numel() == 0 or (far.max() <= 1 and far.float().mean() < 0.2), value


@pytest.mark.parametrize("kind", [*LARGE, "small"])
@pytest.mark.parametrize("name", GEOMETRIC)
def test_geometric_mean_difference_to_pil_is_small(name: str, kind: str, photographs: list[Tensor]) -> None:
    """Half a level, and three at 32 pixels: there the one-pixel edge is a tenth of the image."""
    image, most = kinds(photographs)[kind], 3 if kind == "small" else 0.5
    reference, values = GEOMETRIC[name]
    for value in values:
        assert difference(run(name, image, value), reference(to_pil(image), value)).float().mean() < most, value


@pytest.mark.parametrize("name", [*TONE, *GEOMETRIC])
def test_float_and_uint8_agree(name: str, crops: Tensor) -> None:
    """Float is the same function without the rounding: a level apart at most, but for the staircases' own steps."""
    _, values = {**TONE, **GEOMETRIC}[name]
    for value in values:
        operation = OPERATIONS[name]
        arguments = (torch.full((len(crops),), value),) if operation.has_magnitude else ()
        exact = operation.function(crops.double() / 255, *arguments) * 255
        far = (exact - operation.function(crops, *arguments)).abs()
        # Sharpness rounds twice in Pillow: once smoothing, up to half a level amplified by |1 − factor|, once blending.
        assert far.max() < (1.6 if name == "Sharpness" else 1.55 if name in ("Color", "Contrast") else 1.05), value


def test_luma_weights_are_those_of_itu_r_601() -> None:
    primaries = torch.eye(3).reshape(3, 3, 1, 1)
    grey = OPERATIONS["Color"].function(primaries, torch.zeros(3))[:, 0, 0, 0]
    torch.testing.assert_close(grey, torch.tensor([0.299, 0.587, 0.114]))


def test_fill_is_the_colour_outside() -> None:
    for images in (torch.full((1, 3, 8, 8), 100, dtype=torch.uint8), torch.full((1, 3, 8, 8), 100 / 255)):
        scale = 255 if images.dtype == torch.uint8 else 1
        moved = geometric.translate_x(images, torch.tensor([0.5]), fill=(0.2, 0.4, 0.6))
        torch.testing.assert_close(moved[..., :4], images[..., :4])
        for channel, fill in enumerate((0.2, 0.4, 0.6)):
            assert (moved[:, channel, :, 4:].double() / scale - fill).abs().max() < 1e-3
        grey = geometric.translate_x(images, torch.tensor([0.5]), fill=0.5)
        assert (grey[..., 4:].double() / scale - 0.5).abs().max() < 3e-3


@pytest.mark.parametrize("fill", [(0.1, 0.2), -0.1, 128, "black", (), float("nan")])
def test_bad_fills(fill: Any) -> None:
    with pytest.raises(ValueError, match="fill"):
        OPERATIONS["Rotate"](torch.rand(1, 3, 4, 4), torch.ones(1), torch.ones(1), fill)


def test_a_fill_has_to_fit_the_channels() -> None:
    with pytest.raises(ValueError, match="channel"):
        OPERATIONS["Invert"](torch.rand(1, 1, 4, 4), torch.ones(1), torch.ones(1), (0.1, 0.2, 0.3))
