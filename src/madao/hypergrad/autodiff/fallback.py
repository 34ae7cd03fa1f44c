"""Second derivatives of any loss: by forward mode where torch has it, by other means where it has not."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from madao.errors import first_line
from madao.hypergrad import pytree
from madao.hypergrad.autodiff.functional_model import without_autocast
from madao.hypergrad.autodiff.products import (
    DoubleBackward,
    FiniteDifference,
    ForwardOverReverse,
    PureLoss,
    SecondOrder,
)
from madao.hypergrad.problem import SplitLoss, detached, mean
from madao.hypergrad.pytree import Operator, OptionalVector, Vector

_KINDS: tuple[tuple[SecondOrder, str], ...] = (
    (ForwardOverReverse(), "forward mode"),
    (DoubleBackward(), "double backward, which needs more memory"),
    (FiniteDifference(), "finite differences, which are approximate"),
)

_TOLERANCE = 0.01
"""The relative difference up to which a directional derivative agrees with the gradient. Rounding causes less."""

_Point = tuple[Any, Vector, Vector, Vector]
"""A loss, its parameters, a direction and its inputs."""


class Fallback(SecondOrder):
    """Second derivatives by forward mode; by double backward or finite differences if the loss has none.

    torch lacks the forward-mode derivative of some operations. The first failure of a kind of derivative leads to the
    next kind, for this call and all later ones. An error after a success is raised: it has another cause.

    Args:
        say: Called with one line when the kind of derivative changes.
    """

    def __init__(self, say: Callable[[str], None]) -> None:
        self.say = say
        self._place = 0
        self._worked: set[str] = set()

    @property
    def kind(self) -> SecondOrder:
        """The kind of derivative in use."""
        return _KINDS[self._place][0]

    @contextlib.contextmanager
    def saying(self, say: Callable[[str], None]) -> Iterator[None]:
        """Let another function receive the lines."""
        kept, self.say = self.say, say
        try:
            yield
        finally:
            self.say = kept

    def products(self, loss: PureLoss, params: Vector, inputs: Vector) -> Operator:
        """Return v ↦ H v."""
        return self._operator("products", lambda kind: kind.products(loss, params, inputs), loss, params, inputs)

    def gauss_newton(self, loss: SplitLoss, params: Vector, inputs: Vector) -> Operator:
        """Return v ↦ Jᵀ S J v."""
        return self._operator(
            "gauss_newton", lambda kind: kind.gauss_newton(loss, params, inputs), loss, params, inputs
        )

    def directional(
        self, loss: PureLoss, params: Vector, direction: Vector, inputs: Vector
    ) -> tuple[Tensor, OptionalVector]:
        """Return D_q ℓ, and the gradient of its mean in the inputs."""
        point = loss, params, direction, inputs
        found: tuple[Tensor, OptionalVector] = self._first("directional", lambda kind: kind.directional(*point), point)
        return found

    def slopes(self, loss: PureLoss, params: Vector, direction: Vector, inputs: Vector) -> tuple[Tensor, Tensor]:
        """Return ℓ and D_q ℓ."""
        point = loss, params, direction, inputs
        found: tuple[Tensor, Tensor] = self._first("slopes", lambda kind: kind.slopes(*point), point)
        return found

    def _operator(
        self, name: str, make: Callable[[SecondOrder], Operator], loss: Any, params: Vector, inputs: Vector
    ) -> Operator:
        made: dict[SecondOrder, Operator] = {}

        def product(direction: Vector) -> Vector:
            def apply(kind: SecondOrder) -> Vector:
                if kind not in made:
                    made[kind] = make(kind)
                return made[kind](direction)

            found: Vector = self._first(name, apply, (loss, params, direction, inputs))
            return found

        return product

    def _first(self, name: str, compute: Callable[[SecondOrder], Any], point: _Point) -> Any:
        """Return the result of the first kind of derivative that works at a point, from the present one on."""
        failure: RuntimeError | None = None
        for place in range(self._place, len(_KINDS)):
            kind = _KINDS[place][0]
            try:
                result = compute(kind)
                if (
                    failure is not None
                    and place < len(_KINDS) - 1
                    and not _is_right(kind, point[0], point[1], point[3])
                ):
                    continue
            except RuntimeError as error:
                if name in self._worked or isinstance(error, torch.OutOfMemoryError):
                    raise
                failure = failure or error
                continue
            if failure is not None:
                self._change(place, failure)
            self._worked.add(name)
            return result
        assert failure is not None
        raise failure

    def _change(self, place: int, failure: RuntimeError) -> None:
        before, now = _KINDS[self._place][1].split(",")[0], _KINDS[place][1]
        self.say(f"the model cannot be differentiated by {before} ({first_line(failure)}): outer steps use {now}")
        self._place = place
        self._worked.clear()


def _is_right(kind: SecondOrder, loss: PureLoss, params: Vector, inputs: Vector) -> bool:
    """Return whether a kind of derivative agrees with the gradient: the slope along it is its squared length.

    Double backward raises no error where a function's backward pass has no derivative: it leaves the terms out.
    """
    with without_autocast():
        found = kind.gradient(loss, params, detached(inputs))[1][: len(params)]
        along = tuple(torch.zeros_like(p) if g is None else g for p, g in zip(params, found, strict=True))
        slopes = kind.slopes(loss, params, along, inputs)[1]
    expected = pytree.dot(along, along)
    difference = (mean(slopes) - expected).abs()
    return not bool(difference > _TOLERANCE * torch.maximum(mean(slopes.abs()), expected.abs()))
