"""Derivatives in the magnitude and in the image."""

import pytest
import torch
from torch import Tensor

from madao.ops import OPERATIONS, PAPER, Operation
from madao.ops.registry import SECANT_HALF_WIDTH

EXACT = [OPERATIONS[name] for name in PAPER if OPERATIONS[name].derivative == "exact"]
STAIRCASE = [OPERATIONS[name] for name in PAPER if OPERATIONS[name].derivative == "straight-through"]


def by_name(operation: Operation) -> str:
    return operation.name


def smooth_images(count: int = 2, channels: int = 3, height: int = 6, width: int = 7) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    return 0.15 + 0.7 * torch.rand(count, channels, height, width, generator=generator, dtype=torch.float64)


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("sign", [1.0, -1.0])
@pytest.mark.parametrize("operation", EXACT, ids=by_name)
def test_exact_operations_pass_gradcheck_in_magnitude_and_image(
    operation: Operation, sign: float, channels: int
) -> None:
    images = smooth_images(channels=channels).requires_grad_()
    magnitude = torch.tensor([0.371, 0.613], dtype=torch.float64, requires_grad=True)
    signs = torch.full((2,), sign, dtype=torch.float64)
    torch.autograd.gradcheck(lambda x, m: operation(x, m, signs), (images, magnitude))
    if not (operation.name == "Color" and channels == 1):  # a grey image has no colour to change
        (gradient,) = torch.autograd.grad(operation(images, magnitude, signs).square().sum(), magnitude)
        assert (gradient != 0).all()


@pytest.mark.parametrize("name", ["TranslateX", "Rotate"])
def test_the_moving_edge_is_part_of_the_derivative(name: str) -> None:
    """A white image changes under motion at its edge alone, so all of the derivative is there."""
    images = torch.ones(1, 1, 8, 8, dtype=torch.float64)
    magnitude = torch.tensor([0.4], dtype=torch.float64, requires_grad=True)
    (gradient,) = torch.autograd.grad(OPERATIONS[name](images, magnitude, torch.ones(1).double()).sum(), magnitude)
    if name == "TranslateX":  # 8 rows lose white at 0.45 · 8 pixels per unit of magnitude
        torch.testing.assert_close(gradient, torch.tensor([-0.45 * 8 * 8], dtype=torch.float64))
    assert gradient < 0


@pytest.mark.parametrize("magnitude", [0.02, 0.25, 0.31, 0.5, 0.62, 0.97, 1.0])
@pytest.mark.parametrize("operation", STAIRCASE, ids=by_name)
def test_straight_through_is_the_derivative_of_the_window_average(
    operation: Operation, magnitude: float, crops: Tensor
) -> None:
    """The derivative of (1 / 2h) ∫ O(m + t) dt over |t| ≤ h, by central difference of a fine sum."""
    images = crops[:3].double() / 255
    ones = torch.ones(3, dtype=torch.float64)
    variable = (magnitude * ones).requires_grad_()
    generator = torch.Generator().manual_seed(0)
    cotangent = torch.randn(images.shape, generator=generator, dtype=torch.float64)
    (gradient,) = torch.autograd.grad((operation(images, variable, ones) * cotangent).sum(), variable)

    low, high = max(magnitude - SECANT_HALF_WIDTH, 0.0), min(magnitude + SECANT_HALF_WIDTH, 1.0)

    def average(shift: float) -> Tensor:
        points = torch.linspace(low, high, 2001, dtype=torch.float64)[1::2] + shift
        total = sum(operation(images, m * ones, ones) for m in points)
        assert isinstance(total, Tensor)
        return total / len(points)

    step = (high - low) / 1000  # a whole number of points, so that the sums telescope
    shifted = average(step / 2) - average(-step / 2)
    expected = (shifted / step * cotangent).sum((1, 2, 3))
    torch.testing.assert_close(gradient, expected, rtol=0.02, atol=0.02 * float(expected.abs().max()))


@pytest.mark.parametrize("operation", STAIRCASE, ids=by_name)
def test_straight_through_leaves_the_value_alone(operation: Operation, crops: Tensor) -> None:
    images, magnitude = crops / 255, torch.full((len(crops),), 0.6)
    sign = torch.ones(len(crops))
    assert torch.equal(operation(images, magnitude.clone().requires_grad_(), sign), operation(images, magnitude, sign))


def test_a_staircase_has_a_gradient_of_the_size_of_a_smooth_operation(crops: Tensor) -> None:
    """Not the sum over C · H · W pixels of a straight-through of slope one, which is about a hundred times more."""
    images = crops / 255
    generator = torch.Generator().manual_seed(0)
    cotangent = torch.randn(images.shape, generator=generator) + 0.1
    ones = torch.ones(len(images))

    def size(operation: Operation) -> float:
        magnitude = torch.full((len(images),), 0.62, requires_grad=True)
        (gradient,) = torch.autograd.grad((operation(images, magnitude, ones) * cotangent).sum(), magnitude)
        return float(gradient.square().mean().sqrt())

    smooth = sorted(size(operation) for operation in EXACT)
    naive = float(cotangent.sum((1, 2, 3)).square().mean().sqrt())
    for operation in STAIRCASE:
        assert smooth[0] / 4 < size(operation) < smooth[-1] * 4, operation.name
        assert size(operation) < naive / 2, operation.name


def test_straight_through_counts_a_smooth_part_once_and_uses_fill() -> None:
    def shift(images: Tensor, value: Tensor, fill: float) -> Tensor:
        return images * value.reshape(-1, 1, 1, 1) + fill

    operation = Operation("Smooth", shift, (0.0, 1.0), derivative="straight-through", geometric=True)
    images, magnitude = torch.rand(1, 3, 4, 4), torch.tensor([0.5], requires_grad=True)
    (gradient,) = torch.autograd.grad(operation(images, magnitude, torch.ones(1), 0.3).sum(), magnitude)
    torch.testing.assert_close(gradient, images.sum().reshape(1))


@pytest.mark.parametrize("name", ["Posterize", "Equalize"])
def test_staircases_pass_the_images_gradient_straight_through(name: str, crops: Tensor) -> None:
    images = (crops[:4] / 255).requires_grad_()
    cotangent = torch.randn(images.shape, generator=torch.Generator().manual_seed(0))
    result = OPERATIONS[name](images, torch.full((4,), 0.7), torch.ones(4))
    (gradient,) = torch.autograd.grad((result * cotangent).sum(), images)
    assert torch.equal(gradient, cotangent)


def test_tone_operations_with_an_image_derivative_pass_gradcheck() -> None:
    images = smooth_images(count=1).requires_grad_()
    one = torch.ones(1, dtype=torch.float64)
    for name in ("Invert", "AutoContrast", "Solarize"):
        torch.autograd.gradcheck(lambda x, name=name: OPERATIONS[name](x, 0.55 * one, one), (images,))


def test_uint8_takes_a_magnitude_that_wants_a_gradient() -> None:
    images = torch.randint(0, 256, (2, 3, 4, 4), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    for name in PAPER:
        result = OPERATIONS[name](images, torch.tensor([0.3, 0.6], requires_grad=True), torch.ones(2))
        assert result.dtype == torch.uint8
        assert not result.requires_grad
