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
    FunctionalModel,
    GaussNewton,
    Influence,
    LeaveOneOut,
    Neumann,
    Problem,
    Relaxed,
    SameLoss,
    Term,
    Traced,
    Unaugmented,
    Unrolled,
    hypergradient,
)
from madao.hypergrad.autodiff.products import SecondOrder
from madao.hypergrad.pytree import Vector

COUNT = 12
GENERATOR = torch.Generator().manual_seed(0)
IMAGES = torch.rand(COUNT, 1, 6, 6, generator=GENERATOR, dtype=torch.float64)
LABELS = torch.randint(0, 3, (COUNT,), generator=GENERATOR)
PARTS = [slice(0, 4), slice(4, 8), slice(8, 12)]
KINDS: list[SecondOrder] = [ForwardOverReverse(), DoubleBackward(), Traced()]


def pure() -> FunctionalModel:
    torch.manual_seed(0)
    return FunctionalModel(
        nn.Sequential(nn.Conv2d(1, 4, 3), nn.Tanh(), nn.Flatten(), nn.Linear(64, 3)).double(), "eval"
    )


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
    """A loss that receives its examples and labels."""

    def outputs(self, params: Any, given: Vector) -> Tensor:
        found: Tensor = MODEL(params, given[0])
        return found

    def of_outputs(self, outputs: Tensor, given: Vector) -> Tensor:
        return F.cross_entropy(outputs, given[1], reduction="none")

    def __call__(self, params: Any, given: Vector) -> Tensor:
        return self.of_outputs(self.outputs(params, given), given)


def picking(scored: int = 0, direct: bool = True) -> list[Term]:
    """Terms that pick their part of all inputs; the last `scored` are only scored."""
    smooth = len(PARTS) - scored
    return [
        Term(Picking(p.start, p.stop, direct), 1 / 3, 1 / smooth if i < smooth else 0.0) for i, p in enumerate(PARTS)
    ]


def given(scored: int = 0, direct: bool = True) -> list[Term]:
    def of(part: slice, inputs: Tensor) -> Vector:
        return (inputs if direct else IMAGES)[part], LABELS[part]

    return [
        Term(Given(), term.weight, term.pathwise, functools.partial(of, part))
        for term, part in zip(picking(scored), PARTS, strict=True)
    ]


def gradient(terms: Callable[..., list[Term]], scored: int, direct: bool, *how: Any) -> tuple[Tensor, Any]:
    """The gradient in brightness and in a preference for bright images."""
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
def test_terms_of_part_of_the_inputs_equal_losses_that_pick_the_part(
    solver: Any, estimator: Any, scored: int, direct: bool, kind: SecondOrder
) -> None:
    expected, expected_stats = gradient(picking, scored, direct, solver, ForwardOverReverse(), estimator)
    found, stats = gradient(given, scored, direct, solver, kind, estimator)
    torch.testing.assert_close(found, expected, rtol=1e-8, atol=1e-12)
    assert stats.outer_loss == pytest.approx(expected_stats.outer_loss, rel=1e-12)
    assert found.abs().max() > 0


def test_finite_differences_and_unrolling_too() -> None:
    for how in ((Neumann(2, 0.1), FiniteDifference()), (Unrolled(3),)):
        expected, found = (gradient(terms, 0, True, *how)[0] for terms in (picking, given))
        torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-12)


def test_the_direct_gradient_of_the_outer_loss_counts() -> None:
    """The outer loss by brighter images, moving or not, differs by its own derivative at fixed weights."""
    phi = torch.tensor(0.9, dtype=torch.float64, requires_grad=True)
    images = IMAGES * phi

    def outer(attached: bool) -> list[Term]:
        return [
            Term(
                Given(),
                1 / 3,
                of=functools.partial(lambda p, x: ((x if attached else images.detach())[p], LABELS[p]), part),
            )
            for part in PARTS
        ]

    def found(attached: bool) -> Tensor:
        problem = Problem(MODEL.params, phi, given(), outer(attached), images)
        grads: Tensor = hypergradient(problem, Neumann(2, 0.1)).grads
        return grads

    loss = F.cross_entropy(MODEL(MODEL.params, IMAGES * phi), LABELS)
    (expected,) = torch.autograd.grad(loss, phi)
    torch.testing.assert_close(found(True) - found(False), expected, rtol=1e-8, atol=1e-12)


def test_parts_of_one_shape_are_traced_once() -> None:
    together, apart = Traced(), Traced()
    for kind, terms in ((together, given), (apart, picking)):
        gradient(terms, 2, False, Deflated(), kind, Influence(SameLoss()))
    names = [key[0] for key in together._made]
    assert sorted(names) == ["directional", "gradient", "losses", "slopes"]
    assert len(apart._made) > 2 * len(names)


def test_terms_without_inputs_do_not_contribute_to_their_gradient() -> None:
    """Of three parts the last is of other images, which do not move."""
    *moving, still = given()
    terms = [*moving, dataclasses.replace(still, of=lambda _: (IMAGES[PARTS[2]], LABELS[PARTS[2]]))]
    for kind in (*KINDS, FiniteDifference()):
        found = hypergradient(Problem(MODEL.params, IMAGES, terms, given(0, False)), Neumann(2, 0.1), kind).grads
        assert found[:8].flatten(1).any(1).all()
        assert not found[8:].any()


@pytest.mark.parametrize("taken", [IMAGES, [IMAGES, LABELS], {"images": IMAGES}, (IMAGES, 3)])
def test_a_term_that_returns_no_tuple_of_tensors_raises(taken: Any) -> None:
    terms = [Term(Given(), of=lambda _: taken)]
    with pytest.raises(TypeError, match=r"Term\.of"):
        hypergradient(Problem(MODEL.params, IMAGES, terms, terms))
