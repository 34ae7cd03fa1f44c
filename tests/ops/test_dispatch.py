"""A different operation for each image."""

import pytest
import torch
from torch import Tensor

from madao.ops import choose, dispatch

OPERATIONS = choose()


def setting(crops: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    images = crops.repeat(3, 1, 1, 1)
    images = images if dtype == torch.uint8 else images.to(dtype) / 255
    generator = torch.Generator().manual_seed(0)
    count = len(images)
    choice = torch.randint(0, len(OPERATIONS), (count,), generator=generator)
    magnitude = torch.rand(count, generator=generator)
    sign = torch.randint(0, 2, (count,), generator=generator) * 2.0 - 1
    return images, choice, magnitude, sign, torch.rand(count, generator=generator) < 0.6


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
def test_equals_one_image_at_a_time(crops: Tensor, dtype: torch.dtype) -> None:
    images, choice, magnitude, sign, applied = setting(crops, dtype)
    before = images.clone()
    result = dispatch(images, OPERATIONS, choice, magnitude, sign, applied)
    assert torch.equal(images, before)
    for b in range(len(images)):
        one = slice(b, b + 1)
        operation = OPERATIONS[int(choice[b])]
        expected = operation(images[one], magnitude[one], sign[one]) if applied[b] else images[one]
        torch.testing.assert_close(result[one], expected, rtol=0, atol=0 if dtype == torch.uint8 else 1e-6)


def test_images_of_one_batch_get_different_operations(crops: Tensor) -> None:
    """Catches one operation per chunk of a batch."""
    images = crops[10:11].expand(len(OPERATIONS), -1, -1, -1)
    count = len(images)
    result = dispatch(images, OPERATIONS, torch.arange(count), torch.full((count,), 0.8), torch.ones(count))
    assert len({image.numpy().tobytes() for image in result}) == count


def test_gradients_equal_those_of_one_image_at_a_time(crops: Tensor) -> None:
    images, choice, magnitude, sign, applied = setting(crops, torch.float32)
    weights = torch.randn(images.shape, generator=torch.Generator().manual_seed(1))

    def gradients(one_by_one: bool) -> tuple[Tensor, ...]:
        x, m = images.clone().requires_grad_(), magnitude.clone().requires_grad_()
        if one_by_one:
            rows = [slice(b, b + 1) for b in range(len(x))]
            parts = [dispatch(x[r], OPERATIONS, choice[r], m[r], sign[r], applied[r]) for r in rows]
            result = torch.cat(parts)
        else:
            result = dispatch(x, OPERATIONS, choice, m, sign, applied)
        return torch.autograd.grad((result * weights).sum(), (x, m))

    torch.testing.assert_close(gradients(False), gradients(True), rtol=1e-4, atol=1e-4)


def test_gradient_to_the_images_alone(crops: Tensor) -> None:
    images = (crops / 255).requires_grad_()
    ones = torch.ones(len(images))
    result = dispatch(images, choose(["Invert"]), torch.zeros(len(images)).long(), ones, ones)
    assert torch.equal(torch.autograd.grad(result.sum(), images)[0], -torch.ones_like(images))


def test_empty_batch() -> None:
    images, empty = torch.rand(0, 3, 8, 8), torch.zeros(0)
    assert dispatch(images, OPERATIONS, empty.long(), empty, empty).shape == images.shape


@pytest.mark.parametrize(
    ("choice", "applied", "name"),
    [
        *((torch.tensor(choice), None, "choice") for choice in ([0, 14], [-1, 3], [0.0, 1.0], [True, False], [0])),
        *((torch.tensor(choice), torch.tensor([True, True]), "choice") for choice in ([0, 14], [-1, 3])),
        *((torch.tensor([0, 1]), torch.tensor(applied), "applied") for applied in ([True], [1, 0])),
    ],
)
def test_bad_choices(choice: Tensor, applied: Tensor | None, name: str) -> None:
    with pytest.raises(ValueError, match=name):
        dispatch(torch.rand(2, 3, 8, 8), OPERATIONS, choice, torch.zeros(2), torch.ones(2), applied)
