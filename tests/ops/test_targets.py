"""Masks, points and boxes go where the image goes."""

import math

import pytest
import torch
from torch import Tensor

from madao.ops import OPERATIONS, Operation, geometric, targets
from tests.helpers.moved_masks import PLACES, brute_force

GEOMETRIC = [name for name, operation in OPERATIONS.items() if operation.geometric]
SIZES = [(23, 41), (40, 17), (1, 9), (16, 16)]
STRENGTHS = [(0.0, 1.0), (0.37, 1.0), (0.37, -1.0), (1.0, 1.0), (1.0, -1.0)]


def real_value(name: str, magnitude: float, sign: float) -> float:
    return OPERATIONS[name].value(torch.tensor([magnitude]), torch.tensor([sign])).item()


def matrix_of(name: str, magnitude: float, sign: float, height: int, width: int) -> Tensor:
    found = targets.matrix(OPERATIONS[name], torch.tensor([magnitude]), torch.tensor([sign]), height, width)
    assert found is not None
    return found


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("name", GEOMETRIC)
def test_masks_equal_a_search_pixel_by_pixel(name: str, size: tuple[int, int]) -> None:
    generator = torch.Generator().manual_seed(0)
    mask = torch.randint(-(2**62), 2**62, (2, *size), generator=generator)
    for magnitude, sign in STRENGTHS:
        value = real_value(name, magnitude, sign)
        moved = targets.move_masks(mask[None], matrix_of(name, magnitude, sign, *size))[0]
        expected, sure = brute_force(name, mask, value)
        assert torch.equal(moved[:, sure], expected[:, sure]), (magnitude, sign)
        assert sure.float().mean() > 0.5
        if magnitude == 0:
            assert torch.equal(moved, mask)


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.uint16, torch.int32, torch.uint64, torch.float64])
def test_masks_of_any_dtype(dtype: torch.dtype) -> None:
    values = torch.tensor([[0, 1, 2], [3, 250, 255]])
    mask = values.to(dtype) if not dtype.is_floating_point else values.to(dtype) * math.pi - 1e9
    moved = targets.move_masks(mask[None], matrix_of("TranslateX", 1 / 1.35, 1.0, 2, 3))[0]  # one pixel to the left
    assert moved.dtype == dtype
    assert moved[:, :2].tolist() == mask[:, 1:].tolist()
    assert moved[:, 2].tolist() == torch.zeros(2).to(dtype).tolist()


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("name", GEOMETRIC)
def test_points_go_back_to_where_the_output_reads(name: str, size: tuple[int, int]) -> None:
    height, width = size
    points = torch.tensor([[0.0, 0.0], [3.5, 0.5], [width, height], [-7, 100]], dtype=torch.float64)
    for magnitude, sign in STRENGTHS:
        value = real_value(name, magnitude, sign)
        moved = targets.move_points(points[None], matrix_of(name, magnitude, sign, *size), *size)[0]
        back = [PLACES[name](x, y, value, *size) for x, y in moved.tolist()]
        torch.testing.assert_close(torch.tensor(back, dtype=torch.float64), points, atol=1e-9, rtol=0)


@pytest.mark.parametrize("name", GEOMETRIC)
def test_boxes_hold_their_moved_corners(name: str) -> None:
    size = (23, 41)
    box = torch.tensor([[5.0, 7.0, 12.0, 20.0]], dtype=torch.float64)
    matrix = matrix_of(name, 0.8, -1.0, *size)
    corners = torch.tensor([[5, 7], [12, 7], [5, 20], [12, 20]], dtype=torch.float64)
    moved = targets.move_points(corners[None], matrix, *size)[0]
    expected = torch.cat([moved.amin(0), moved.amax(0)])
    torch.testing.assert_close(targets.move_boxes(box[None], matrix, *size)[0, 0], expected)


@pytest.mark.parametrize("name", GEOMETRIC)
def test_the_operation_is_its_matrix_and_a_warp(name: str, crops: Tensor) -> None:
    operation = OPERATIONS[name]
    assert operation.matrix is not None
    value = torch.linspace(-1, 1, len(crops)) * 0.3
    for images in (crops, crops.float() / 255):
        warped = geometric.warp(images, operation.matrix(value, 32, 40), fill=0.4)
        assert torch.equal(operation.function(images, value, fill=0.4), warped)


def swirl(images: Tensor, value: Tensor, fill: float = 0.0) -> Tensor:
    return images.clone()


def test_an_operation_that_moves_pixels_without_a_matrix_says_so() -> None:
    operation = Operation("Swirl", swirl, (0.0, 1.0), geometric=True)
    with pytest.raises(ValueError, match="Swirl"):
        targets.matrix(operation, torch.ones(1), torch.ones(1), 4, 4)
    assert targets.matrix(OPERATIONS["Invert"], torch.ones(1), torch.ones(1), 4, 4) is None


def test_a_matrix_without_a_range_gets_zero() -> None:
    def flip(value: Tensor, height: int, width: int) -> Tensor:
        assert value.tolist() == [0.0, 0.0]
        return torch.tensor([[-1.0, 0, 0], [0, 1, 0]]).repeat(len(value), 1, 1)

    operation = Operation("Flip", lambda images, fill: images.flip(-1), geometric=True, matrix=flip)
    matrix = targets.matrix(operation, torch.ones(2), torch.ones(2), 4, 6)
    assert matrix is not None
    mask = torch.arange(48).reshape(2, 4, 6)
    assert torch.equal(targets.move_masks(mask, matrix), mask.flip(-1))


def test_a_matrix_belongs_to_a_geometric_operation() -> None:
    with pytest.raises(ValueError, match="geometric"):
        Operation("Gamma", swirl, (0.0, 1.0), matrix=geometric.rotate_matrix)
