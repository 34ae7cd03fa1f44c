"""Properties of every policy, learned or not."""

import copy
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from scipy import stats
from torch import Tensor, nn
from torch.utils.data import DataLoader

from madao import (
    AutoAugment,
    BaseAugmentation,
    ClassPolicy,
    Draw,
    ImagePolicy,
    Policy,
    RandAugment,
    TrivialAugment,
    Uniform,
)
from madao.policy import AugmentationPolicy, FrozenPolicy
from tests.helpers.policies import fields, scattered, seeded


class Labelled(ClassPolicy):
    """A policy for each class that knows the labels."""

    def condition(self, images: Tensor, labels: Tensor | None = None) -> Tensor:
        return torch.arange(len(images)) % len(self.classes) if labels is None else labels


KINDS: dict[str, Callable[..., AugmentationPolicy]] = {
    "policy": Policy,
    "class": lambda **settings: scattered(Labelled(3, **settings)),
    "image": lambda **settings: scattered(ImagePolicy(**settings), 0.5),
    "frozen": lambda fill=0.0, **settings: FrozenPolicy(Policy(fill=fill).spec(), **settings),
    "uniform": Uniform,
    "randaugment": RandAugment,
    "trivialaugment": TrivialAugment,
    "autoaugment": AutoAugment,
    "autoaugment-svhn": lambda seed=0, **settings: AutoAugment("svhn", seed=seed, **settings),
}
Build = Callable[..., AugmentationPolicy]
every_policy = pytest.mark.parametrize("build", KINDS.values(), ids=KINDS.keys())
MANY = torch.zeros(1, 1, 1, 1).expand(40_000, 3, 2, 2)


def same(first: Draw, second: Draw) -> bool:
    return all(torch.equal(a, b) for a, b in zip(fields(first), fields(second), strict=True))


@every_policy
def test_a_given_generator_is_the_only_source(build: Build) -> None:
    policy, images = build(), torch.rand(40, 3, 8, 8)
    own, world = policy.generator().get_state(), torch.get_rng_state()
    generator, again = seeded(5), seeded(5)
    first, second = policy.sample(images, generator), policy.sample(images, generator)
    assert torch.equal(policy.generator().get_state(), own)
    assert torch.equal(torch.get_rng_state(), world)
    assert not same(first, second)
    torch.manual_seed(123)
    assert same(policy.sample(images, again), first)
    assert same(policy.sample(images, again), second)


@every_policy
def test_seed_copy_and_state(build: Build, tmp_path: Path) -> None:
    images = torch.rand(40, 3, 8, 8, generator=seeded(0))
    policy = build(seed=1)
    first = policy(images)
    assert torch.equal(build(seed=1)(images), first)
    assert not torch.equal(policy(images), first)
    assert policy.manual_seed(1) is policy
    assert torch.equal(policy(images), first)
    assert not torch.equal(policy.manual_seed(2)(images), first)
    assert policy.seed == 2
    other = build(seed=9)
    torch.save(policy.state_dict(), tmp_path / "policy.pt")
    other.load_state_dict(torch.load(tmp_path / "policy.pt", weights_only=True))
    copied = copy.deepcopy(policy)
    expected = policy(images)
    assert torch.equal(other(images), expected)
    assert torch.equal(copied(images), expected)


@every_policy
def test_images_keep_shape_and_dtype_and_change(build: Build, crops: Tensor) -> None:
    policy = build()
    for images in (crops, crops / 255, crops[:, :1], crops[:0], crops[:1, :, :1, :1], crops[:7, :, :5, :9] / 255):
        result = policy(images)
        assert result.shape == images.shape
        assert result.dtype == images.dtype
        assert images.numel() < 10 or not torch.equal(result, images)


@every_policy
def test_evaluation_mode_passes_images_through(build: Build, crops: Tensor) -> None:
    policy = build().eval()
    state = policy.state_dict()
    for images in (crops, crops / 255, 3 * crops.float()):  # also normalised ones, which a policy cannot augment
        assert policy(images) is images
    assert same(policy.sample(crops, seeded()), build().sample(crops, seeded()))
    draw = policy.sample(crops, seeded())
    assert torch.equal(policy.augment(crops, draw), policy.train().augment(crops, draw))
    assert not torch.equal(policy(crops), crops)
    assert policy.state_dict().keys() == state.keys()


@pytest.mark.parametrize("build", [*KINDS.values(), BaseAugmentation])
def test_apply_is_that_of_modules(build: Callable[[], nn.Module]) -> None:
    seen: list[nn.Module] = []
    policy = build()
    assert nn.Sequential(policy, nn.Flatten()).apply(seen.append)[0] is policy
    assert policy in seen


@pytest.mark.parametrize("name", [name for name in KINDS if name not in ("class", "image")])
def test_an_unconditional_policy_ignores_labels(name: str) -> None:
    policy, images, labels = KINDS[name](), torch.rand(60, 3, 8, 8), torch.arange(60) % 3
    first, *others = (policy.sample(images, seeded(), condition=given) for given in (None, labels, torch.rand(60, 3)))
    assert all(same(first, draw) for draw in others)
    assert torch.equal(policy.manual_seed(3)(images, labels), policy.manual_seed(3)(images))


@every_policy
def test_both_signs_for_every_signed_operation(build: Build) -> None:
    policy = build()
    draw = policy.sample(MANY)
    for index, operation in enumerate(policy.operations):
        for stage in range(draw.stages):
            signs = draw.sign[stage][draw.choice[stage] == index]
            if operation.signed and len(signs):
                assert stats.binomtest(int((signs > 0).sum()), len(signs)).pvalue > 1e-4, operation.name
    if draw.stages > 1:  # and each stage has its own
        assert stats.binomtest(int((draw.sign[0] == draw.sign[1]).sum()), len(MANY)).pvalue > 1e-4


@pytest.mark.parametrize("name", ["policy", "uniform", "autoaugment", "autoaugment-svhn"])
def test_stages_are_applied_independently(name: str) -> None:
    """Also within a pair of operations, which for AutoAugment come together."""
    policy = KINDS[name]()
    draw = policy.sample(MANY)
    code = draw.choice[0] * 14 + draw.choice[1]
    pairs, tested = code.unique(), 0
    if isinstance(policy, AutoAugment):  # a pair that is published twice is a mixture of two probabilities
        table = policy.get_buffer("_choice")
        published, times = (table[0] * 14 + table[1]).unique(return_counts=True)
        pairs = published[times == 1]
    for pair in pairs:
        applied = draw.applied[:, code == pair]
        table = torch.bincount(2 * applied[0].long() + applied[1].long(), minlength=4).reshape(2, 2)
        if (table.sum(0) > 20).all() and (table.sum(1) > 20).all():
            assert stats.chi2_contingency(table).pvalue > 1e-5
            tested += 1
    assert tested >= 5


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        *((Policy, {"stages": stages}) for stages in (0, True)),
        (Policy, {"temperature": 0}),
        (Policy, {"application_temperature": 0}),
        *((Policy, {"init_magnitude": start}) for start in (0, 1)),
        *((Policy, {"fill": fill}) for fill in (128, -0.1, (0.1, 0.2))),
        *((kind, {"magnitude_jitter": jitter}) for kind in (Policy, Uniform) for jitter in (-0.1, 1.1, math.nan)),
        *((ClassPolicy, {"classes": classes}) for classes in (1, ["cat"], ["cat", "cat"], 0)),
        *((ClassPolicy, {"shrinkage": shrinkage, "classes": 2}) for shrinkage in (-0.1, math.nan)),
        *((ImagePolicy, {"units": units}) for units in (0, -1, 2.0, True)),
        (ImagePolicy, {"shrinkage": -1}),
        (RandAugment, {"m": 9}),
        (TrivialAugment, {"space": "narrow"}),
        (Uniform, {"magnitude": 2}),
        (BaseAugmentation, {"padding": -1}),
        (BaseAugmentation, {"cutout": 1.5}),
        (BaseAugmentation, {"size": 0}),
        (BaseAugmentation, {"mean": (0.5,) * 3}),
        (BaseAugmentation, {"mean": (), "std": ()}),
        *((BaseAugmentation, {"scale": scale}) for scale in (0.0, -0.1, 1.5, math.nan)),
    ],
)
def test_settings_out_of_range_are_refused(kind: Callable[..., nn.Module], settings: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(settings))):
        kind(**settings)


@every_policy
def test_fill_shows(build: Build) -> None:
    black = torch.zeros(200, 3, 33, 33)
    policy = build(fill=0.25)
    draw = policy.sample(black)
    geometric = torch.tensor([operation.geometric for operation in policy.operations])
    moved = geometric[draw.choice[0]] & draw.applied[0] & (draw.magnitude[0] > 0.25)
    assert moved.any()
    first = Draw(*(field[:1] for field in fields(draw)))
    result = policy.augment(black, first)[moved]
    assert result.max().item() == pytest.approx(0.25)
    assert (result.flatten(1).amax(1) > 0.05).all()


@every_policy
@pytest.mark.parametrize("fill", [0.0, (0.1, 0.5, 0.9)])
def test_stages_apply_one_after_the_other_each_as_drawn(build: Build, fill: Any, crops: Tensor) -> None:
    """Against operations called one image and one stage at a time."""
    policy = build(fill=fill)
    images = crops.repeat(3, 1, 1, 1)
    for batch in (images, images / 255):
        draw = policy.sample(batch)
        expected = []
        for b, image in enumerate(batch.split(1)):
            for stage in range(draw.stages):
                if draw.applied[stage, b]:
                    operation = policy.operations[int(draw.choice[stage, b])]
                    image = operation(image, draw.magnitude[stage, b : b + 1], draw.sign[stage, b : b + 1], policy.fill)
            expected.append(image)
        torch.testing.assert_close(policy.augment(batch, draw), torch.cat(expected), rtol=0, atol=1e-6)


class Collate:
    def __init__(self, policy: AugmentationPolicy | BaseAugmentation) -> None:
        self.policy = policy

    def __call__(self, items: list[Tensor]) -> Tensor:
        draw = self.policy.sample(torch.stack(items))
        return draw.choice if isinstance(draw, Draw) else draw.top[None]


@pytest.mark.parametrize("policy", [RandAugment(), BaseAugmentation()], ids=["policy", "standard"])
def test_workers_and_epochs_draw_differently(policy: AugmentationPolicy | BaseAugmentation) -> None:
    policy.sample(torch.rand(2, 3, 4, 4))  # the parent has a generator already, which a fork inherits
    items: Any = [torch.rand(3, 4, 4)] * 32
    loader: DataLoader[Tensor] = DataLoader(items, batch_size=16, num_workers=2, collate_fn=Collate(policy))
    draws = [tuple(choice.flatten().tolist()) for _ in range(2) for choice in loader]
    assert len(set(draws)) == 4


def test_standard_and_its_policy_do_not_share_random_numbers() -> None:
    standard = BaseAugmentation(padding=2, policy=AutoAugment())
    draw = standard.sample(MANY)
    assert draw.inner is not None
    joint = torch.zeros(5, 14)
    joint.index_put_((draw.top, draw.inner.choice[0]), torch.ones(len(MANY)), accumulate=True)
    assert stats.chi2_contingency(joint[:, joint.sum(0) > 0]).pvalue > 1e-4
