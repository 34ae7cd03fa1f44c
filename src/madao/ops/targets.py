"""Move masks, points and boxes along with an image through a geometric operation.

A geometric operation is one affine map. Its matrix (`Operation.matrix`) gives the position in the input that an output
pixel reads. A mask is read through the matrix; a point is moved by its inverse.

Points and boxes are in pixels from edge to edge: the image spans 0..width and 0..height, and the centre of pixel i lies
at i + 0.5. Move masks through several operations one by one: pixels that one operation pushes over the edge are lost,
in the image and in the mask.
"""

from collections.abc import Iterable

import torch
from torch import Tensor

from madao.ops.geometric import sampling_grid
from madao.ops.registry import Operation

_SIGNED = {torch.uint16: torch.int16, torch.uint32: torch.int32, torch.uint64: torch.int64}
"""Types with the same bits, for types that torch cannot gather."""


def check_moves(operations: Iterable[Operation]) -> None:
    """Raise unless masks, boxes and points can move along with all of the operations."""
    for operation in operations:
        if operation.geometric and operation.matrix is None:
            raise ValueError(
                f"{operation.name} moves pixels but has no matrix, so masks, boxes and points cannot move along; give "
                "Operation(..., matrix=...) to madao.ops.register, or augment the image alone"
            )


def matrix(operation: Operation, magnitude: Tensor, sign: Tensor, height: int, width: int) -> Tensor | None:
    """Return each image's matrix `[B, 2, 3]` in float64, as for `warp`; None if the operation moves nothing."""
    check_moves([operation])
    if operation.matrix is None:
        return None
    # Rounded as for the image; float64 from here on tells neighbouring pixels apart.
    value = operation.value(magnitude, sign) if operation.has_magnitude else torch.zeros_like(magnitude)
    return operation.matrix(value.double(), height, width)


def move_masks(masks: Tensor, matrix: Tensor, outside: int = 0) -> Tensor:
    """Read each mask, `[B, ..., H, W]` of any dtype, at the pixel nearest to the position its matrix gives."""
    height, width = masks.shape[-2:]
    # From [−1, 1] to pixels, where pixel i spans i..i + 1: the nearest pixel is the one that holds the position.
    place = (sampling_grid(matrix.double(), height, width) + 1) / 2
    column, row = (place[..., 0] * width).floor(), (place[..., 1] * height).floor()
    inside = (column >= 0) & (column < width) & (row >= 0) & (row < height)
    index = (row.clamp(0, height - 1) * width + column.clamp(0, width - 1)).long()
    signed = masks.view(_SIGNED[masks.dtype]) if masks.dtype in _SIGNED else masks
    flat = signed.reshape(len(masks), -1, height * width)
    layers = (len(masks), flat.shape[1], height * width)
    moved = flat.gather(2, index.reshape(len(masks), 1, -1).expand(layers))
    kept = inside.reshape(len(masks), 1, -1).expand(layers)
    other = torch.full((), outside, dtype=flat.dtype, device=masks.device)
    return torch.where(kept, moved, other).reshape(masks.shape).view(masks.dtype)


def move_points(points: Tensor, matrix: Tensor, height: int, width: int) -> Tensor:
    """Move points `[B, N, 2]`, x and y in pixels from edge to edge, from the input to their positions in the output."""
    half = torch.tensor([width / 2, height / 2], dtype=torch.float64, device=points.device)
    exact = matrix.double()
    placed = points.double() / half - 1 - exact[:, None, :, 2]
    moved: Tensor = torch.linalg.solve(exact[:, :, :2], placed.transpose(1, 2)).transpose(1, 2)
    return ((moved + 1) * half).to(points.dtype)


def move_boxes(boxes: Tensor, matrix: Tensor, height: int, width: int) -> Tensor:
    """Return the upright boxes around the moved corners of boxes `[B, N, 4]`: left, top, right, bottom in pixels.

    They may extend over the image's edge.
    """
    corners = boxes[..., [0, 1, 2, 1, 2, 3, 0, 3]].reshape(len(boxes), -1, 2)
    moved = move_points(corners, matrix, height, width).reshape(*boxes.shape[:2], 4, 2)
    low, high = torch.aminmax(moved, dim=2)
    return torch.cat([low, high], -1)
