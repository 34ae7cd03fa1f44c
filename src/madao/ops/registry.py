"""The class of operations, and the list of all known ones."""

import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Literal

import torch
from torch import Tensor

from madao.ops import enhance, geometric, tone
from madao.ops.checks import check_fill, check_fill_fits, check_images, check_strengths
from madao.ops.geometric import Fill
from madao.text import nearest

Derivative = Literal["exact", "straight-through", "none"]

_HALF = (torch.float16, torch.bfloat16)

_FURTHEST = 10
"""Times an operation's own strongest value beyond which a limit means nothing, and at last no finite number."""

SECANT_HALF_WIDTH = 1 / 8
"""Half the width of the window of magnitudes for straight-through derivatives."""


@dataclasses.dataclass(frozen=True)
class Operation:
    """An image operation with a magnitude μ in [0, 1] and, if signed, a sign of ±1.

    Calling an operation augments a batch. The function's parameter in real units is neutral + sign · μ · (strongest −
    neutral): μ = 0 changes nothing and μ = 1 is the strongest.

    Attributes:
        name: Its name in policies and their files.
        function: `function(images, value)`, or `function(images)` without a range. `images` is `[B, C, H, W]`, uint8 or
            float in [0, 1], and `value` `[B]`. The result is a new tensor with the shape and dtype of `images`. A
            geometric function also takes `fill`.
        range: The neutral and the strongest parameter; None without a magnitude.
        signed: Whether the parameter may lie on either side of neutral, with equal probability for each image.
        derivative: The kind of ∂result/∂μ. `"exact"`: autograd differentiates the function. `"straight-through"`, for
            staircases: the derivative of the mean over magnitudes within ±1/8, [O(μ + 1/8) − O(μ − 1/8)] / (1/4) per
            pixel, with the ends clipped to [0, 1], in reverse mode only. `"none"`: zero.
        geometric: Whether it moves pixels, so that masks and boxes move along.
        unit: Unit of `range`, for people.
        matrix: `matrix(value, height, width)` of a geometric operation that is one affine map, `[B]` → `[B, 2, 3]`, as
            in `madao.ops.geometric.warp`. Masks, boxes and points move along with it (`madao.ops.targets`). `value` is
            0 without a range.
    """

    name: str
    function: Callable[..., Tensor]
    range: tuple[float, float] | None = None
    signed: bool = False
    derivative: Derivative = "none"
    geometric: bool = False
    unit: str = ""
    matrix: Callable[[Tensor, int, int], Tensor] | None = None

    def __post_init__(self) -> None:
        if not self.name or not isinstance(self.name, str):
            raise ValueError(f"an operation's name must be a string that is not empty, got {self.name!r}")
        if self.derivative not in ("exact", "straight-through", "none"):
            raise ValueError(
                f"{self.name}: derivative must be 'exact', 'straight-through' or 'none', got {self.derivative!r}"
            )
        if self.matrix is not None and not self.geometric:
            raise ValueError(f"{self.name}: a matrix moves pixels, so geometric must be True, got {self.geometric}")
        if self.range is None:
            if self.signed or self.derivative != "none":
                raise ValueError(
                    f"{self.name}: without a range there is no magnitude, so signed must be False and "
                    f"derivative 'none', got {self.signed} and {self.derivative!r}"
                )
        elif len(self.range) != 2 or not all(map(math.isfinite, self.range)) or self.range[0] == self.range[1]:
            raise ValueError(f"{self.name}: range must be two different finite numbers, got {self.range!r}")

    @property
    def has_magnitude(self) -> bool:
        """Whether the operation has a magnitude to learn."""
        return self.range is not None

    def value(self, magnitude: Tensor, sign: Tensor) -> Tensor:
        """Return the function's parameter in real units at a magnitude and sign."""
        if self.range is None:
            raise ValueError(f"{self.name} has no magnitude")
        neutral, strongest = self.range
        step = magnitude * (strongest - neutral)
        return neutral + (sign * step if self.signed else step)

    def limited(self, strongest: float) -> "Operation":
        """Return the same operation with another strongest value: `Rotate` up to 10 degrees, or up to 90."""
        if self.range is None:
            raise ValueError(f"{self.name} has no magnitude, so it has no range to limit; leave it out instead")
        neutral, present = self.range
        if not math.isfinite(strongest) or (strongest - neutral) * (present - neutral) <= 0:
            side = "above" if present > neutral else "below"
            raise ValueError(
                f"{self.name}: the limit must lie {side} {neutral:g}, where nothing changes (its own is "
                f"{present:g} {self.unit}), got {strongest!r}"
            )
        furthest = neutral + _FURTHEST * (present - neutral)
        if abs(strongest - neutral) > abs(furthest - neutral):
            raise ValueError(
                f"{self.name}: the limit may be at most {_FURTHEST} times its own {present:g} {self.unit}, "
                f"up to {furthest:g}, got {strongest!r}"
            )
        return dataclasses.replace(self, range=(neutral, float(strongest)))

    def __call__(self, images: Tensor, magnitude: Tensor, sign: Tensor, fill: Fill = 0.0) -> Tensor:
        """Augment each image of a batch at its own magnitude and sign. See `dispatch` for the arguments."""
        check_images(images)
        check_strengths(magnitude, sign, images)
        check_fill_fits(check_fill(fill), images)
        return self.apply_unchecked(images, magnitude, sign, fill)

    def apply_unchecked(self, images: Tensor, magnitude: Tensor, sign: Tensor, fill: Fill = 0.0) -> Tensor:
        """Do what `__call__` does, without checks."""
        if images.dtype in _HALF or magnitude.dtype in _HALF:  # too coarse for coordinates and sums
            raised = images.float() if images.dtype in _HALF else images
            return self.apply_unchecked(raised, magnitude.float(), sign.float(), fill).to(images.dtype)
        if self.derivative != "straight-through" or not magnitude.requires_grad:
            return self._run(images, magnitude, sign, fill)
        result = self._run(images, magnitude.detach(), sign, fill)
        if images.dtype == torch.uint8:
            return result
        with torch.no_grad():
            low = (magnitude - SECANT_HALF_WIDTH).clamp(min=0)
            high = (magnitude + SECANT_HALF_WIDTH).clamp(max=1)
            rise = self._run(images, high, sign, fill) - self._run(images, low, sign, fill)
            slope = rise / (high - low).to(rise.dtype).reshape(-1, 1, 1, 1)
        # The added term is exactly zero and only contributes the derivative.
        return result + (magnitude - magnitude.detach()).to(slope.dtype).reshape(-1, 1, 1, 1) * slope

    def _run(self, images: Tensor, magnitude: Tensor, sign: Tensor, fill: Fill) -> Tensor:
        extra = {"fill": fill} if self.geometric else {}
        if self.range is None:
            result = self.function(images, **extra)
        else:
            strength = magnitude.detach() if self.derivative == "none" else magnitude
            result = self.function(images, self.value(strength, sign), **extra)
        if result.shape != images.shape or result.dtype != images.dtype:
            raise ValueError(
                f"{self.name}: its function must keep shape and dtype; it made {result.dtype} {list(result.shape)} of "
                f"{images.dtype} {list(images.shape)}"
            )
        return result


def _geometric(
    name: str, function: Callable[..., Tensor], matrix: Callable[..., Tensor], strongest: float, unit: str
) -> Operation:
    return Operation(
        name, function, (0.0, strongest), signed=True, derivative="exact", geometric=True, unit=unit, matrix=matrix
    )


def _enhance(name: str, function: Callable[..., Tensor]) -> Operation:
    return Operation(name, function, (1.0, 2.0), signed=True, derivative="exact", unit="factor")


OPERATIONS: dict[str, Operation] = {
    operation.name: operation
    for operation in (
        _geometric("ShearX", geometric.shear_x, geometric.shear_x_matrix, 0.3, "shear"),
        _geometric("ShearY", geometric.shear_y, geometric.shear_y_matrix, 0.3, "shear"),
        _geometric("TranslateX", geometric.translate_x, geometric.translate_x_matrix, 0.45, "of the width"),
        _geometric("TranslateY", geometric.translate_y, geometric.translate_y_matrix, 0.45, "of the height"),
        _geometric("Rotate", geometric.rotate, geometric.rotate_matrix, 30.0, "degrees"),
        Operation("Invert", tone.invert),
        Operation("AutoContrast", tone.autocontrast),
        Operation("Equalize", tone.equalize),
        Operation("Solarize", tone.solarize, (256.0, 0.0), derivative="straight-through", unit="threshold"),
        _enhance("Color", enhance.color),
        Operation("Posterize", tone.posterize, (8.0, 4.0), derivative="straight-through", unit="bits"),
        _enhance("Contrast", enhance.contrast),
        _enhance("Brightness", enhance.brightness),
        _enhance("Sharpness", enhance.sharpness),
    )
}
"""All known operations by name: the paper's fourteen in the paper's order, then registered ones."""

PAPER = tuple(OPERATIONS)
"""Names of the paper's fourteen operations."""


def built_in(operation: Operation) -> bool:
    """Return whether an operation is one of the paper's, with or without a limited range."""
    return operation.name in PAPER and operation.function is OPERATIONS[operation.name].function


def register(operation: Operation, replace: bool = False) -> Operation:
    """Make an operation known by its name to policies and their files; `replace` one of your own of the same name.

    Example:
        >>> madao.ops.register(madao.ops.Operation("Gamma", gamma, range=(1.0, 3.0), derivative="exact"))
        >>> policy = madao.Policy(operations=[*madao.ops.PAPER, "Gamma"])
    """
    if operation.name in PAPER or (not replace and OPERATIONS.get(operation.name, operation) != operation):
        raise ValueError(
            f"an operation named {operation.name!r} is registered already; give yours another name, change the range "
            "of the registered one with limited(), or replace your own with replace=True"
        )
    OPERATIONS[operation.name] = operation
    return operation


def find(name: str) -> Operation:
    """Return the operation of that name."""
    if name not in OPERATIONS:
        raise ValueError(f"unknown operation {nearest(name, OPERATIONS)}; add your own with madao.ops.register")
    return OPERATIONS[name]


def choose(
    operations: Iterable[str | Operation] = PAPER,
    limits: Mapping[str, float] | None = None,
    exclude: Iterable[str] = (),
) -> tuple[Operation, ...]:
    """Return the operations to draw from, without those to `exclude`; `limits` like `{"Rotate": 10}` in real units."""
    for what, names in (("operations", operations), ("exclude", exclude)):
        if isinstance(names, str):
            raise TypeError(f"{what} must be a list of names, got the one string {names!r}")
    chosen = {op.name: op for op in (find(item) if isinstance(item, str) else item for item in operations)}
    for what, chosen_names in (("limit", limits or {}), ("leave out", exclude)):
        for name in chosen_names:
            if name not in chosen:
                raise ValueError(f"cannot {what} {nearest(name, chosen)}")
    left_out = set(exclude)
    kept = tuple(
        op.limited(limits[name]) if limits and name in limits else op
        for name, op in chosen.items()
        if name not in left_out
    )
    if not kept:
        raise ValueError("there is no operation left to draw from; leave fewer out")
    return kept
