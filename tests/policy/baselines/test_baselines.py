"""The controls, against the papers and the libraries they come from."""

import pytest
import torch
from scipy import stats
from torchvision.transforms import AutoAugment as TorchvisionAutoAugment
from torchvision.transforms import AutoAugmentPolicy
from torchvision.transforms import TrivialAugmentWide as TorchvisionTrivial

from madao import AutoAugment, Draw, Policy, RandAugment, TrivialAugment, Uniform
from madao.ops import PAPER
from madao.policy import AugmentationPolicy, OperationParams

MANY = torch.empty(1, 1, 1, 1, dtype=torch.uint8).expand(60_000, 3, 64, 48)


def even(counts: torch.Tensor) -> bool:
    return bool(stats.chisquare(counts.double()).pvalue > 1e-3)


def test_uniform_is_a_policy_before_it_learns() -> None:
    assert Uniform().spec() == Policy().spec()


def test_settings_of_the_controls_take_effect() -> None:
    entries = Uniform(1, ["Rotate", "Invert"], limits={"Rotate": 10}, application=0.3, magnitude=0.5, fill=0.2)
    assert [operation.range for operation in entries.operations] == [(0.0, 10.0), None]
    spec = entries.spec()
    assert (spec.fill, spec.stages[0][0]) == (0.2, OperationParams(0.5, 0.3, 5.0))
    assert [operation.name for operation in Uniform(exclude=PAPER[1:]).operations] == ["ShearX"]
    augment = RandAugment(operations=["Color"], fill=0.4)
    assert (augment.spec().fill, augment.spec().stages[0]) == (0.4, (OperationParams(1.0, 1.0, 1.3),))
    assert len(augment.spec().stages) == 2
    RandAugment(m=1.0)


def test_randaugment() -> None:
    policy = RandAugment(n=3, m=0.4)
    draw = policy.sample(MANY)
    assert draw.stages == 3
    assert draw.applied.all()
    assert [operation.name for operation in policy.operations] == list(PAPER)
    for stage in range(3):
        assert even(torch.bincount(draw.choice[stage], minlength=14))
    has = torch.tensor([operation.has_magnitude for operation in policy.operations])
    assert torch.allclose(draw.magnitude, torch.where(has[draw.choice], 0.4, 0.0), atol=1e-5)
    with pytest.raises(ValueError, match="stages"):
        RandAugment(n=2.0)  # type: ignore[arg-type]


def real_values(policy: AugmentationPolicy, draw: Draw) -> dict[str, torch.Tensor]:
    values = {}
    for index, operation in enumerate(policy.operations):
        here = (draw.choice == index) & draw.applied
        if operation.has_magnitude:
            values[operation.name] = operation.value(draw.magnitude[here], draw.sign[here])
    return values


def test_trivialaugment_wide_is_torchvisions() -> None:
    policy = TrivialAugment("wide")
    draw = policy.sample(MANY)
    assert draw.stages == 1
    outcome = torch.where(draw.applied, draw.choice, len(policy.operations))
    assert even(torch.bincount(outcome.flatten(), minlength=14))
    values = real_values(policy, draw)
    height, width = MANY.shape[2:]
    space = TorchvisionTrivial()._augmentation_space(31)
    assert {*space} == {operation.name for operation in policy.operations} | {"Identity"}
    for name, (magnitudes, signed) in space.items():
        if name not in values:
            continue
        ours, theirs = values[name].unique(), magnitudes.double()
        if name.startswith("Translate"):
            ours = ours * (width if name.endswith("X") else height)
        if name in ("Color", "Contrast", "Brightness", "Sharpness"):
            ours = ours - 1
        if name == "Posterize":
            ours = ours.round().unique()
        expected = torch.cat([-theirs, theirs]).unique() if signed else theirs.unique()
        tolerance = 1.01 if name == "Solarize" else 1e-4  # 256 · (1 − μ) here, 255 · (1 − μ) there
        assert len(ours) >= len(expected), name
        assert (ours.double()[:, None] - expected).abs().amin(1).max() < tolerance, name
        assert (ours.double()[:, None] - expected).abs().amin(0).max() < tolerance, name


def test_trivialaugment_normal_and_large_translation() -> None:
    values = real_values(policy := TrivialAugment("normal"), policy.sample(MANY))
    assert values["Rotate"].abs().max() == pytest.approx(30)
    assert (values["TranslateX"].abs().max() * 48).item() == pytest.approx(10, abs=1e-3)
    assert values["Color"].min().item() == pytest.approx(0.1, abs=1e-6)
    assert values["Posterize"].min().item() == pytest.approx(4)
    tiny = TrivialAugment("wide").sample(MANY[:, :, :8, :8])
    assert tiny.magnitude.max() == 1  # 32 pixels are more than the image


@pytest.mark.parametrize("name", ["cifar10", "svhn", "imagenet"])
def test_autoaugment_is_the_published_one(name: str) -> None:
    """Both operations, their probability and their strength, sub-policy by sub-policy, against torchvision's tables."""
    policy = AutoAugment(name)
    theirs = TorchvisionAutoAugment(AutoAugmentPolicy(name))
    space = theirs._augmentation_space(10, (100, 100))
    one = torch.ones(())
    assert policy.get_buffer("_choice").shape == (2, 25)
    for number, sub_policy in enumerate(theirs.policies):
        for stage, (operation_name, probability, level) in enumerate(sub_policy):
            operation = policy.operations[int(policy.get_buffer("_choice")[stage, number])]
            assert operation.name == operation_name
            assert policy.get_buffer("_probability")[stage, number].item() == pytest.approx(probability)
            if level is None:
                assert not operation.has_magnitude
                continue
            ours = operation.value(policy.get_buffer("_magnitude")[stage, number], one).item()
            expected = float(space[operation_name][0][level])
            if operation_name.startswith("Translate"):
                ours *= 100
            elif operation.unit == "factor":
                ours -= 1
            elif operation_name == "Posterize":
                ours = round(ours)
            assert ours == pytest.approx(expected, abs=1.01 if operation_name == "Solarize" else 1e-4)


def test_autoaugment_draws_whole_sub_policies() -> None:
    policy = AutoAugment("cifar10")
    draw = policy.sample(MANY)
    table = policy.get_buffer("_choice")
    pairs = {tuple(pair) for pair in table.T.tolist()}
    assert {tuple(pair) for pair in draw.choice.unique(dim=1).T.tolist()} == pairs
    code, known = draw.choice[0] * 14 + draw.choice[1], table[0] * 14 + table[1]
    counts = torch.bincount(code, minlength=196)
    expected = torch.bincount(known, minlength=196) / 25 * len(code)
    used = expected > 0
    assert stats.chisquare(counts[used].double(), expected[used].double()).pvalue > 1e-3
    rotated = (draw.choice[0] == PAPER.index("Rotate")) & (draw.choice[1] == PAPER.index("TranslateX"))
    assert torch.allclose(draw.magnitude[:, rotated], torch.tensor([[2 / 9], [1.0]]))
    rate = draw.applied[:, rotated].float().mean(1)
    assert torch.allclose(rate, torch.tensor([0.7, 0.3]), atol=0.04)
    with pytest.raises(ValueError, match="did you mean 'cifar10'"):
        AutoAugment("cifar100")


@pytest.mark.parametrize("policy", [Uniform(), RandAugment(), TrivialAugment(), AutoAugment()])
def test_controls_have_nothing_to_learn(policy: AugmentationPolicy) -> None:
    assert not [*policy.parameters()]
