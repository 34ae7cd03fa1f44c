"""Choosing, limiting and registering operations."""

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from madao.ops import OPERATIONS, PAPER, Operation, choose, dispatch, find, register
from madao.policy import Policy, PolicySpec


def gamma(images: Tensor, exponent: Tensor) -> Tensor:
    values = images / 255 if images.dtype == torch.uint8 else images
    result = values.clamp(min=1e-6) ** exponent.reshape(-1, 1, 1, 1)
    return (result * 255).round().to(torch.uint8) if images.dtype == torch.uint8 else result


GAMMA = Operation("Gamma", gamma, range=(1.0, 3.0), derivative="exact", unit="exponent")


@pytest.fixture
def registered() -> Iterator[Operation]:
    yield register(GAMMA)
    del OPERATIONS["Gamma"]


def test_a_registered_operation_is_one_like_the_others(registered: Operation) -> None:
    policy = Policy(operations=[*PAPER, "Gamma"])
    assert sum(p.numel() for p in policy.parameters()) == 2 * (15 + 15 + 12)
    images = torch.rand(64, 3, 6, 6, generator=torch.Generator().manual_seed(0))
    policy.augment(images, policy.sample(images, relaxed=True)).sum().backward()
    assert policy.magnitude_logits.grad is not None
    assert (policy.magnitude_logits.grad[:, -1] != 0).all()
    assert PolicySpec.loads(policy.spec().dumps()) == policy.spec()
    assert Policy().operations == choose()  # the default stays the paper's


def test_a_registered_staircase_gets_the_documented_surrogate(crops: Tensor) -> None:
    threshold = Operation(
        "Threshold",
        lambda images, t: (images > t.reshape(-1, 1, 1, 1)).to(images.dtype),
        range=(0.0, 1.0),
        derivative="straight-through",
    )
    images = crops[:2] / 255
    magnitude = torch.tensor([0.4, 0.5], requires_grad=True)
    (gradient,) = torch.autograd.grad(threshold(images, magnitude, torch.ones(2)).sum(), magnitude)
    between = [((images[b] > m - 1 / 8) & (images[b] <= m + 1 / 8)).sum() for b, m in enumerate((0.4, 0.5))]
    torch.testing.assert_close(gradient, torch.tensor([-4.0 * float(count) for count in between]))


def test_registering_twice(registered: Operation) -> None:
    assert register(GAMMA) is GAMMA
    with pytest.raises(ValueError, match="'Gamma'"):
        register(Operation("Gamma", gamma, range=(1.0, 4.0), derivative="exact"))
    for replace in (False, True):
        with pytest.raises(ValueError, match="'Rotate'"):
            register(Operation("Rotate", gamma, range=(1.0, 4.0)), replace=replace)
    wider = Operation("Gamma", gamma, range=(1.0, 4.0), derivative="exact")
    assert register(wider, replace=True) is find("Gamma") is wider


def test_an_operation_that_changes_dtype_or_shape_is_named() -> None:
    for wrong in (lambda images: images / 255, lambda images: images[:, :1]):
        with pytest.raises(ValueError, match="Wrong"):
            Operation("Wrong", wrong)(torch.zeros(2, 3, 4, 4, dtype=torch.uint8), torch.zeros(2), torch.ones(2))


def test_an_operation_with_parameters_of_its_own_keeps_their_gradient() -> None:
    strength = torch.nn.Parameter(torch.tensor(0.5))
    operation = Operation("Learned", lambda images: images * strength)
    images, choice = torch.rand(4, 3, 5, 5), torch.tensor([0, 1, 0, 1])
    result = dispatch(images, (find("Invert"), operation), choice, torch.zeros(4), torch.ones(4))
    (gradient,) = torch.autograd.grad(result.sum(), strength)
    torch.testing.assert_close(gradient, images[choice == 1].sum())
    assert torch.equal(result[choice == 0], 1 - images[choice == 0])


def test_limits_are_in_real_units(crops: Tensor) -> None:
    (rotate,) = choose(["Rotate"], limits={"Rotate": 10})
    one = torch.ones(1)
    assert rotate.value(one, one).item() == 10
    assert torch.equal(rotate(crops[:1], one, one), OPERATIONS["Rotate"](crops[:1], one / 3, one))
    assert OPERATIONS["Rotate"].range == (0, 30)
    solarize, color = choose(["Solarize", "Color"], limits={"Solarize": 128, "Color": 1.5})
    assert solarize.value(one, one).item() == 128
    assert [color.value(one, sign).item() for sign in (one, -one)] == [1.5, 0.5]


def test_leaving_out() -> None:
    names = [operation.name for operation in choose(exclude=["Invert", "Solarize"])]
    assert names == [name for name in PAPER if name not in ("Invert", "Solarize")]


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        ({"operations": ["Rotat"]}, "'Rotat'; did you mean 'Rotate'"),
        ({"limits": {"Rotato": 3}}, "'Rotato'; did you mean 'Rotate'"),
        ({"exclude": ["Inverse"]}, "'Inverse'; did you mean 'Invert'"),
        ({"limits": {"Invert": 3}}, "Invert"),
        ({"limits": {"Rotate": 0}}, "Rotate: .* above 0"),
        ({"operations": ["ROTATE"]}, "'ROTATE'; did you mean 'Rotate'"),
        ({"operations": ["Twirl"]}, "'Twirl'; known are ShearX"),
        ({"limits": {"Rotate": -10}}, "Rotate: .* above 0"),
        ({"limits": {"Solarize": 300}}, "Solarize: .* below 256"),
        ({"limits": {"Rotate": float("nan")}}, "nan"),
        ({"exclude": PAPER}, "no operation left"),
    ],
)
def test_bad_choices(arguments: dict[str, object], name: str) -> None:
    with pytest.raises(ValueError, match=name):
        choose(**arguments)  # type: ignore[arg-type]


def test_a_string_is_not_a_list_of_names() -> None:
    with pytest.raises(TypeError, match="'Rotate'"):
        choose("Rotate")
    with pytest.raises(TypeError):
        choose(exclude="Invert")


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        *(({"name": name}, "name") for name in (3, "")),
        *(({"range": span}, "range") for span in ((0.0, 1.0, 2.0), (1.0, 1.0), (0.0, float("inf")))),
        ({"range": None, "derivative": "exact"}, "without a range"),
        ({"range": None, "signed": True}, "without a range"),
        ({"derivative": "approximate"}, "derivative"),
    ],
)
def test_bad_operations(fields: dict[str, object], name: str) -> None:
    with pytest.raises(ValueError, match=name):
        Operation(**({"name": "X", "function": gamma, "range": (0.0, 1.0)} | fields))  # type: ignore[arg-type]


def test_an_operation_without_magnitude_has_no_value() -> None:
    with pytest.raises(ValueError, match="Invert"):
        find("Invert").value(torch.ones(1), torch.ones(1))


def test_an_operation_with_a_range_and_no_derivative_gives_none() -> None:
    frozen = Operation("Frozen", gamma, range=(1.0, 3.0))
    magnitude = torch.tensor([0.5], requires_grad=True)
    assert not frozen(torch.rand(1, 3, 4, 4), magnitude, torch.ones(1)).requires_grad
