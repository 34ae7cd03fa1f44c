import pytest
import torch

from madao import Draw, PolicySpec
from madao.ops import OPERATIONS, Operation
from madao.policy import OperationParams
from madao.policy.describe import alike, preferred, sentence, steps
from madao.policy.units import amount, strength


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("Rotate", 21.4, "±21°"),
        ("Rotate", 4.26, "±4.3°"),
        ("ShearX", 0.185, "shear ±0.185"),
        ("TranslateX", 0.28, "±28 % of the width"),
        ("Brightness", 1.62, "factor 1 ± 0.62"),
        ("Solarize", 97.3, "threshold 97.3"),
        ("Posterize", 5.5, "6 bits"),
        ("Posterize", 5.49, "5 bits"),
        ("Invert", None, "–"),
    ],
)
def test_strengths_are_in_real_units(name: str, value: float | None, text: str) -> None:
    assert strength(OPERATIONS[name], value) == text


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("Rotate", -21.4, "−21°"),
        ("ShearY", -0.1, "shear −0.1"),
        ("TranslateY", -0.28, "−28 % of the height"),
        ("Color", 0.38, "factor 0.38"),
    ],
)
def test_amounts_have_their_sign(name: str, value: float, text: str) -> None:
    assert amount(OPERATIONS[name], value) == text


def spec(names: str, *stages: list[tuple[float, float, float | None]]) -> PolicySpec:
    operations = tuple(OPERATIONS[name] for name in names.split())
    return PolicySpec(operations, tuple(tuple(OperationParams(*entry) for entry in stage) for stage in stages))


FOUR = "Rotate Color Solarize Invert"


@pytest.mark.parametrize(
    ("chosen", "text"),
    [
        (
            spec(
                "Rotate Color Solarize Invert", [(0.66, 0.5, 21), (0.2, 0.5, 1.5), (0.1, 0.5, 100), (0.04, 0.5, None)]
            ),
            "prefers Rotate by ±21° (66 % of draws); almost never Invert",
        ),
        (  # the mean over stages, and the strength of the likelier one
            spec(
                "Rotate Color Invert",
                [(0.9, 0.5, 21), (0.05, 0.5, 1.5), (0.05, 0.5, None)],
                [(0.2, 0.5, 3), (0.75, 0.5, 1.5), (0.05, 0.5, None)],
            ),
            "prefers Rotate by ±21° (55 % of draws); almost never Invert",
        ),
        (
            spec(
                "Rotate Color Solarize Invert", [(0.28, 0.5, 21), (0.24, 0.5, 1.5), (0.24, 0.5, 100), (0.24, 0.5, None)]
            ),
            "has no strong preference: the likeliest of 4 is Rotate by ±21° (28 % of draws)",
        ),
        (  # hardly applied
            spec("Rotate Invert", [(0.8, 0.01, 21), (0.2, 0.5, None)]),
            "prefers Rotate by ±21° (80 % of draws, applied in 1 % of them)",
        ),
        (
            spec(
                "Rotate Color Solarize Invert", [(0.25, 0.5, 21), (0.25, 0.5, 1.5), (0.25, 0.5, 100), (0.25, 0.5, None)]
            ),
            "draws its 4 operations equally often",
        ),
    ],
)
def test_a_sentence_says_what_is_preferred(chosen: PolicySpec, text: str) -> None:
    assert sentence(chosen) == text


def test_operations_of_your_own_need_no_unit() -> None:
    own = Operation("Gamma", lambda images, value: images, (0.0, 2.0), signed=True, derivative="none")
    assert strength(own, 0.3) == "±0.3"
    assert amount(own, -0.3) == "−0.3"


def test_steps_are_those_that_are_applied() -> None:
    operations = tuple(OPERATIONS[name] for name in ("Rotate", "Invert"))
    draw = Draw(
        choice=torch.tensor([[0, 0], [1, 0]]),
        applied=torch.tensor([[True, False], [True, True]]),
        magnitude=torch.full((2, 2), 0.5),
        sign=torch.tensor([[-1.0, 1.0], [1.0, 1.0]]),
    )
    assert steps(operations, draw, 0) == ["Rotate −15°", "Invert"]
    assert steps(operations, draw, 1) == ["Rotate 15°"]


@pytest.mark.parametrize(
    ("shares", "expected"),
    [([0.25] * 4, False), ([0.37, 0.21, 0.42], False), ([0.5, 0.25, 0.25], True), ([1.0], False)],
)
def test_operations_from_one_and_a_half_times_the_even_share_are_preferred(shares: list[float], expected: bool) -> None:
    assert preferred(shares) is expected


@pytest.mark.parametrize(("shares", "expected"), [([0.25] * 4, True), ([0.254, 0.246], True), ([0.506, 0.494], False)])
def test_shares_that_hardly_differ_are_alike(shares: list[float], expected: bool) -> None:
    assert alike(shares) is expected
