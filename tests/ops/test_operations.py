"""Properties of every operation."""

from typing import Any

import pytest
import torch
from torch import Tensor

from madao.ops import OPERATIONS, PAPER, Operation

ALL = [OPERATIONS[name] for name in PAPER]
WITH_MAGNITUDE = [operation for operation in ALL if operation.has_magnitude]
SIGNED = [operation for operation in ALL if operation.signed]


def by_name(operation: Operation) -> str:
    return operation.name


def batch(dtype: torch.dtype, *shape: int, seed: int = 0) -> Tensor:
    levels = torch.randint(0, 256, shape, generator=torch.Generator().manual_seed(seed), dtype=torch.uint8)
    return levels if dtype == torch.uint8 else levels.to(dtype) / 255


def strengths(count: int, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    magnitude = torch.linspace(0.13, 0.97, count, dtype=dtype)
    return magnitude, torch.tensor([1.0, -1.0], dtype=dtype).repeat(count)[:count]


def test_the_table_is_the_papers() -> None:
    expected = (
        *("ShearX", "ShearY", "TranslateX", "TranslateY", "Rotate", "Invert", "AutoContrast", "Equalize"),
        *("Solarize", "Color", "Posterize", "Contrast", "Brightness", "Sharpness"),
    )
    assert expected == PAPER
    ranges = {operation.name: operation.range for operation in ALL}
    assert ranges["ShearX"] == ranges["ShearY"] == (0, 0.3)
    assert ranges["TranslateX"] == ranges["TranslateY"] == (0, 0.45)
    assert ranges["Rotate"] == (0, 30)
    assert ranges["Solarize"] == (256, 0)
    assert ranges["Posterize"] == (8, 4)
    assert ranges["Color"] == ranges["Contrast"] == ranges["Brightness"] == ranges["Sharpness"] == (1, 2)
    assert [op.name for op in ALL if not op.has_magnitude] == ["Invert", "AutoContrast", "Equalize"]
    assert [op.name for op in ALL if op.derivative == "exact"] == [op.name for op in SIGNED]
    assert len(SIGNED) == 9


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32, torch.float64])
@pytest.mark.parametrize("operation", WITH_MAGNITUDE, ids=by_name)
def test_magnitude_zero_is_the_identity(operation: Operation, dtype: torch.dtype, crops: Tensor) -> None:
    for images in (crops, crops[:, :1], batch(torch.uint8, 3, 3, 7, 5)):
        images = images if dtype == torch.uint8 else images.to(dtype) / 255
        for sign in (1.0, -1.0):
            result = operation(images, torch.zeros(len(images)), torch.full((len(images),), sign))
            # Sampling works in coordinates: float32 keeps places to 1e-6 of the side, hence not bit for bit.
            tolerance = {torch.uint8: 0, torch.float32: 2e-5 * operation.geometric, torch.float64: 1e-13}[dtype]
            torch.testing.assert_close(result, images, rtol=0, atol=tolerance)


@pytest.mark.parametrize("operation", ALL, ids=by_name)
def test_full_magnitude_changes_the_image(operation: Operation, crops: Tensor) -> None:
    """Catches an operation that does nothing, as the authors' posterize did."""
    for images in (crops, crops / 255):
        result = operation(images, torch.ones(len(images)), torch.ones(len(images)))
        changed = (result != images).flatten(1).any(1)
        # A crop that spans all levels already is its own autocontrast.
        assert changed.all() if operation.name != "AutoContrast" else changed.any()


@pytest.mark.parametrize("first", range(len(ALL)))
def test_no_two_operations_are_the_same(first: int, crops: Tensor) -> None:
    """Catches a TranslateY in TranslateX's place."""
    magnitude, sign = torch.full((len(crops),), 0.7), torch.ones(len(crops))
    result = ALL[first](crops, magnitude, sign)
    for other in ALL[first + 1 :]:
        assert not torch.equal(result, other(crops, magnitude, sign)), other.name


def test_directions() -> None:
    """One bright pixel shows where each geometric operation takes it."""
    image = torch.zeros(1, 1, 9, 9)
    image[0, 0, 4, 4] = 1

    def place(name: str, value: float) -> tuple[int, int]:
        moved = OPERATIONS[name].function(image, torch.tensor([value]))
        y, x = divmod(int(moved.argmax()), 9)
        return y - 4, x - 4

    assert place("TranslateX", 2 / 9) == (0, -2)  # reads from further right, so the content moves left
    assert place("TranslateY", 2 / 9) == (-2, 0)
    assert place("ShearX", 2 / 4.5) == (0, -2)
    assert place("ShearY", 2 / 4.5) == (-2, 0)
    image.zero_()[0, 0, 4, 8] = 1
    assert place("Rotate", 90.0) == (-4, 0)  # counter-clockwise: right goes up


@pytest.mark.parametrize("operation", SIGNED, ids=by_name)
def test_both_signs_act_and_differ(operation: Operation, crops: Tensor) -> None:
    magnitude, ones = torch.full((len(crops),), 0.5), torch.ones(len(crops))
    forward, backward = operation(crops, magnitude, ones), operation(crops, magnitude, -ones)
    assert not torch.equal(forward, backward)
    assert not torch.equal(backward, crops)
    plus, minus = operation.value(magnitude[:1], ones[:1]), operation.value(magnitude[:1], -ones[:1])
    assert operation.range is not None
    neutral, strongest = operation.range
    torch.testing.assert_close(plus - neutral, neutral - minus)
    torch.testing.assert_close(plus, torch.tensor([(neutral + strongest) / 2]))


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize(
    "shape", [(0, 3, 8, 8), (1, 3, 8, 8), (2, 1, 1, 1), (2, 3, 1, 1), (3, 1, 5, 11), (4, 3, 12, 3)]
)
@pytest.mark.parametrize("operation", ALL, ids=by_name)
def test_shape_dtype_range_and_no_write(operation: Operation, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    images = batch(dtype, *shape)
    magnitude, sign = strengths(shape[0])
    before = images.clone(), magnitude.clone(), sign.clone()
    result = operation(images, magnitude, sign)
    assert result.shape == images.shape
    assert result.dtype == dtype
    assert shape[0] == 0 or result.data_ptr() != images.data_ptr()
    for now, then in zip((images, magnitude, sign), before, strict=True):
        assert torch.equal(now, then)
    if dtype != torch.uint8 and shape[0]:
        assert result.min() >= -1e-6
        assert result.max() <= 1 + 1e-6


@pytest.mark.parametrize("operation", ALL, ids=by_name)
def test_memory_layout_does_not_matter(operation: Operation) -> None:
    images = batch(torch.uint8, 4, 3, 8, 9)
    magnitude, sign = strengths(4)
    expected = operation(images, magnitude, sign)
    for strided in (images.contiguous(memory_format=torch.channels_last), images.flip(3).contiguous().flip(3)):
        assert torch.equal(operation(strided, magnitude, sign), expected)


def test_a_nearly_constant_float_image_is_not_stretched_to_noise() -> None:
    image = torch.full((1, 3, 8, 8), 0.5) + 1e-6 * torch.rand(1, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    assert torch.equal(OPERATIONS["AutoContrast"](image, torch.ones(1), torch.ones(1)), image)


def test_posterize_rounds_bits_and_levels() -> None:
    posterize = OPERATIONS["Posterize"].function
    ramp = torch.arange(256, dtype=torch.uint8).reshape(1, 1, 16, 16)
    for bits, whole in ((6.4, 6), (6.5, 7), (6.6, 7), (-3.0, 0), (11.0, 8)):
        assert torch.equal(posterize(ramp, torch.tensor([bits])), ramp & (256 - 2 ** (8 - whole)))
    # Between two levels the nearer one counts: 15.6 is level 16, of which four bits keep all.
    assert posterize(torch.full((1, 1, 1, 1), 15.6 / 255), torch.tensor([4.0])).item() == pytest.approx(16 / 255)
    assert posterize(torch.full((1, 1, 1, 1), 15.4 / 255), torch.tensor([4.0])).item() == 0


def test_contrast_mean_is_exact_on_large_images() -> None:
    images = torch.full((1, 1, 2048, 2048), 100, dtype=torch.uint8)
    images[:, :, :1024] = 101
    images[0, 0, 0, 0] = 100  # the mean is a hair under 100.5, so it rounds to 100
    assert OPERATIONS["Contrast"].function(images, torch.zeros(1)).unique().tolist() == [100]


def test_sharpness_changes_the_one_inner_pixel_of_three_by_three() -> None:
    image = torch.zeros(1, 1, 3, 3)
    image[0, 0, 1, 1] = 1
    assert OPERATIONS["Sharpness"].function(image, torch.zeros(1))[0, 0, 1, 1].item() == pytest.approx(5 / 13)


def test_a_span_of_one_level_is_stretched_and_a_flat_channel_kept() -> None:
    image, one = torch.full((1, 1, 20, 20), 0.5), torch.ones(1)
    image[..., 0] += 1 / 255
    assert OPERATIONS["AutoContrast"](image, one, one).unique().tolist() == [0.0, 1.0]
    flat = torch.full((1, 1, 20, 20), 0.50001)
    assert torch.equal(OPERATIONS["Equalize"](flat, one, one), flat)


@pytest.mark.parametrize("operation", ALL, ids=by_name)
def test_half_precision_is_computed_in_single(operation: Operation, crops: Tensor) -> None:
    half = (crops / 255).bfloat16()
    magnitude, sign = torch.full((len(crops),), 0.5), torch.ones(len(crops))
    assert torch.equal(operation(half, magnitude, sign), operation(half.float(), magnitude, sign).bfloat16())
    for images in (crops, crops / 255):
        expected = operation(images, magnitude, sign)
        assert torch.equal(operation(images, magnitude.bfloat16(), sign.bfloat16()), expected)


def test_slight_overshoot_by_rounding_is_accepted() -> None:
    images = torch.tensor([-5e-4, 1.0005]).reshape(1, 1, 1, 2)
    for operation in ALL:
        assert torch.isfinite(operation(images, torch.full((1,), 0.5), torch.ones(1))).all()
    with pytest.raises(ValueError, match="images"):
        OPERATIONS["Rotate"](images * 1.01, torch.zeros(1), torch.ones(1))


@pytest.mark.parametrize("operation", ALL, ids=by_name)
def test_devices(operation: Operation, crops: Tensor) -> None:
    if not torch.cuda.is_available():
        pytest.skip("there is no GPU")
    magnitude, sign = strengths(len(crops))
    for images in (crops, crops / 255):
        expected = operation(images, magnitude, sign)
        result = operation(images.cuda(), magnitude.cuda(), sign.cuda()).cpu()
        # Coordinates round differently: at most the odd level.
        torch.testing.assert_close(result, expected, rtol=0, atol=1 if images.dtype == torch.uint8 else 1e-4)


def test_derivatives_compose_with_torch_func(crops: Tensor) -> None:
    images = crops[:2].double() / 255
    ones = torch.ones(2, dtype=torch.float64)
    for operation in ALL:
        gradient = torch.func.grad(lambda x, op=operation: op.apply_unchecked(x, 0.4 * ones, ones).square().sum())(
            images
        )
        leaf = images.clone().requires_grad_()
        (expected,) = torch.autograd.grad(operation(leaf, 0.4 * ones, ones).square().sum(), leaf)
        torch.testing.assert_close(gradient, expected)


@pytest.mark.parametrize(
    ("images", "remedy"),
    [
        (torch.rand(3, 8, 8), "add a batch dimension"),
        (torch.rand(2, 2, 3, 8, 8), "dimensions"),
        (torch.rand(2, 4, 8, 8), "channels"),
        (torch.rand(2, 8, 8, 3), "layout"),
        (torch.rand(2, 3, 8, 8) * 255, "divide 0..255 images by 255"),
        (torch.rand(2, 3, 8, 8) - 0.5, "augment before normalising"),
        (torch.full((2, 3, 8, 8), torch.nan), "nan"),
        (torch.rand(2, 3, 0, 8), "pixel"),
    ],
)
def test_bad_images(images: Tensor, remedy: str) -> None:
    with pytest.raises(ValueError, match=remedy):
        OPERATIONS["Rotate"](images, torch.zeros(2), torch.ones(2))


@pytest.mark.parametrize(
    ("images", "magnitude"),
    [
        *((torch.zeros(2, 3, 8, 8, dtype=dtype), torch.zeros(2)) for dtype in (torch.int64, torch.bool)),
        ([[1.0]], torch.zeros(2)),
        (torch.rand(2, 3, 8, 8), torch.tensor([1, 0])),
        (torch.rand(2, 3, 8, 8), 0.5),
    ],
)
def test_bad_types(images: Any, magnitude: Any) -> None:
    with pytest.raises(TypeError):
        OPERATIONS["Rotate"](images, magnitude, torch.ones(2))


@pytest.mark.parametrize(
    ("magnitude", "sign", "name"),
    [
        *((magnitude, [1.0, 1.0], "magnitude") for magnitude in ([0.1, torch.nan], [0.1, 1.5], [-0.1, 0.5], [0.1])),
        ([0.0, 0.0], [1.0, 0.5], "sign"),
    ],
)
def test_bad_strengths(magnitude: list[float], sign: list[float], name: str) -> None:
    with pytest.raises(ValueError, match=name):
        OPERATIONS["Rotate"](torch.rand(2, 3, 8, 8), torch.tensor(magnitude), torch.tensor(sign))
