"""Terms that take a part of the inputs, against losses that look at all of them and pick their own."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from madao.hypergrad import (
    Deflated,
    DoubleBackward,
    FiniteDifference,
    ForwardOverReverse,
    GaussNewton,
    Influence,
    LeaveOneOut,
    Neumann,
    Problem,
    PureModel,
    Relaxed,
    SameLoss,
    Term,
    Traced,
    Unaugmented,
    Unrolled,
    hypergradient,
)
from madao.hypergrad.hvp import SecondOrder
from madao.hypergrad.vector import Vector

COUNT = 12
GENERATOR = torch.Generator().manual_seed(0)
IMAGES = torch.rand(COUNT, 1, 6, 6, generator=GENERATOR, dtype=torch.float64)
LABELS = torch.randint(0, 3, (COUNT,), generator=GENERATOR)
PARTS = [slice(0, 4), slice(4, 8), slice(8, 12)]
KINDS: list[SecondOrder] = [ForwardOverReverse(), DoubleBackward(), Traced()]


def pure() -> PureModel:
    torch.manual_seed(0)
    return PureModel(nn.Sequential(nn.Conv2d(1, 4, 3), nn.Tanh(), nn.Flatten(), nn.Linear(64, 3)).double(), "eval")


MODEL = pure()


@dataclasses.dataclass(frozen=True)
class Picking:
    """Looks at all images, and picks a part."""

    start: int
    stop: int
    direct: bool = False

    def outputs(self, params: Any, inputs: Tensor) -> Tensor:
        found: Tensor = MODEL(params, inputs[self.start : self.stop])
        return found

    def of_outputs(self, outputs: Tensor, inputs: Tensor) -> Tensor:
        return F.cross_entropy(outputs, LABELS[self.start : self.stop], reduction="none")

    def __call__(self, params: Any, inputs: Tensor) -> Tensor:
        return self.of_outputs(self.outputs(params, inputs if self.direct else IMAGES), inputs)


@dataclasses.dataclass(frozen=True)
class Given:
    """Is given its part, and its labels as numbers."""

    def outputs(self, params: Any, given: Vector) -> Tensor:
        found: Tensor = MODEL(params, given[0])
        return found

    def of_outputs(self, outputs: Tensor, given: Vector) -> Tensor:
        return F.cross_entropy(outputs, given[1].long(), reduction="none")

    def __call__(self, params: Any, given: Vector) -> Tensor:
        return self.of_outputs(self.outputs(params, given), given)


def picking(scored: int = 0, direct: bool = True) -> list[Term]:
    """Of the parts, the last `scored` are only that."""
    smooth = len(PARTS) - scored
    return [
        Term(Picking(p.start, p.stop, direct), 1 / 3, 1 / smooth if i < smooth else 0.0) for i, p in enumerate(PARTS)
    ]


def given(scored: int = 0, direct: bool = True) -> list[Term]:
    def of(part: slice, inputs: Tensor) -> Vector:
        return (inputs if direct else IMAGES)[part], LABELS[part].double()

    return [
        Term(Given(), term.weight, term.pathwise, functools.partial(of, part))
        for term, part in zip(picking(scored), PARTS, strict=True)
    ]


def gradient(terms: Callable[..., list[Term]], scored: int, direct: bool, *how: Any) -> tuple[Tensor, Any]:
    """Of brightness and of a preference for bright images."""
    phi = torch.tensor([0.9, 0.3], dtype=torch.float64, requires_grad=True)
    images = IMAGES * phi[0]
    log_prob = F.logsigmoid(phi[1] * IMAGES.flatten(1).mean(1))
    problem = Problem(
        MODEL.params, phi, terms(scored), terms(0, direct), images, log_prob=log_prob, plain=IMAGES, weight_decay=1e-2
    )
    found = hypergradient(problem, *how)
    return found.grads, found.stats


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: type(kind).__name__)
@pytest.mark.parametrize("direct", [True, False])
@pytest.mark.parametrize(
    ("solver", "estimator", "scored"),
    [
        (Neumann(3, 0.1), Relaxed(), 0),
        (Deflated(), Influence(SameLoss()), 2),
        (Neumann(2, 0.1), Influence(Unaugmented()), 1),
        (GaussNewton(3, 0.1), Influence(LeaveOneOut()), 0),
    ],
    ids=str,
)
def test_parts_that_are_given_are_those_that_are_picked(
    solver: Any, estimator: Any, scored: int, direct: bool, kind: SecondOrder
) -> None:
    expected, expected_stats = gradient(picking, scored, direct, solver, ForwardOverReverse(), estimator)
    found, stats = gradient(given, scored, direct, solver, kind, estimator)
    torch.testing.assert_close(found, expected, rtol=1e-8, atol=1e-12)
    assert stats.outer_loss == pytest.approx(expected_stats.outer_loss, rel=1e-12)
    assert found.abs().min() > 0 or scored == 0


def test_finite_differences_and_unrolling_too() -> None:
    for how in ((Neumann(2, 0.1), FiniteDifference()), (Unrolled(3),)):
        expected, found = (gradient(terms, 0, True, *how)[0] for terms in (picking, given))
        torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-12)


def test_what_of_the_outer_loss_does_not_come_from_the_inputs_has_no_part_in_their_gradient() -> None:
    """The images of validation are other tensors than those that move."""
    direct, indirect = (gradient(given, 0, how, Neumann(2, 0.1))[0] for how in (True, False))
    assert not torch.allclose(direct, indirect)


def test_parts_of_one_shape_are_traced_once() -> None:
    together, apart = Traced(), Traced()
    for kind, terms in ((together, given), (apart, picking)):
        gradient(terms, 2, False, Deflated(), kind, Influence(SameLoss()))
    names = [key[0] for key in together._made]
    assert sorted(names) == ["directional", "gradient", "losses", "slopes"]
    assert len(apart._made) > 2 * len(names)


def test_tensors_that_are_not_floating_point_are_refused() -> None:
    terms = [Term(Given(), of=lambda inputs: (inputs, LABELS))]
    problem = Problem(MODEL.params, IMAGES, terms, terms)
    with pytest.raises(TypeError, match="what a term of the outer loss takes of its inputs must hold floating-point"):
        hypergradient(problem)


def test_gradients_are_of_the_inputs_that_want_one() -> None:
    params, labels = tuple(MODEL.params.values()), LABELS.double()
    images, fixed = IMAGES.clone().requires_grad_(), IMAGES.clone()

    def loss(params: Vector, inputs: Vector) -> Tensor:
        return Given()(dict(zip(MODEL.params, params, strict=True)), inputs)

    for kind in KINDS:
        for wanted in (images, fixed):
            *_, of_images, of_labels = kind.gradient(loss, params, (wanted, labels))[1]
            assert (of_images is None) == (wanted is fixed)
            assert of_labels is None
