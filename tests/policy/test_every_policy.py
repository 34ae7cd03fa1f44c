"""Properties of every policy, learned or not."""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from scipy import stats
from torch import Tensor, nn
from torch.utils.data import DataLoader

from madao import AutoAugment, BaseAugmentation, Draw, Policy, RandAugment, TrivialAugment, Uniform
from madao.policy import AugmentationPolicy
from tests.helpers.policies import fields, seeded

KINDS: dict[str, Callable[..., AugmentationPolicy]] = {
    "policy": Policy,
    "uniform": Uniform,
    "randaugment": RandAugment,
    "trivialaugment": TrivialAugment,
    "autoaugment": AutoAugment,
    "autoaugment-svhn": lambda **settings: AutoAugment("svhn", **settings),
}
Build = Callable[..., AugmentationPolicy]
every_policy = pytest.mark.parametrize("build", KINDS.values(), ids=KINDS.keys())
MANY = torch.empty(1, 1, 1, 1).expand(40_000, 3, 32, 32)


def same(first: Draw, second: Draw) -> bool:
    return all(torch.equal(a, b) for a, b in zip(fields(first), fields(second), strict=True))


@every_policy
def test_a_given_generator_is_the_only_source(build: Build) -> None:
    policy, images = build(), torch.rand(40, 3, 8, 8)
    own, world = policy.generator().get_state(), torch.get_rng_state()
    generator = torch.Generator().manual_seed(5)
    first, second = policy.sample(images, generator), policy.sample(images, generator)
    assert torch.equal(policy.generator().get_state(), own)
    assert torch.equal(torch.get_rng_state(), world)
    assert not same(first, second)
    again = torch.Generator().manual_seed(5)
    torch.manual_seed(123)
    assert same(policy.sample(images, again), first)
    assert same(policy.sample(images, again), second)


@every_policy
def test_seed_copy_and_state(build: Build, tmp_path: Path) -> None:
    images = torch.rand(40, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    policy = build(seed=1)
    assert torch.equal(build(seed=1)(images), policy(images))
    assert not torch.equal(build(seed=2)(images), build(seed=1)(images))
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


@every_policy
def test_apply_is_that_of_modules(build: Build) -> None:
    seen: list[nn.Module] = []
    policy = build()
    assert nn.Sequential(policy, nn.Flatten()).apply(seen.append)[0] is policy
    assert policy in seen


@every_policy
def test_both_signs_for_every_signed_operation(build: Build) -> None:
    policy = build()
    draw = policy.sample(MANY)
    for index, operation in enumerate(policy.operations):
        for stage in range(draw.stages):
            signs = draw.sign[stage][draw.choice[stage] == index]
            if operation.signed and len(signs):
                assert stats.binomtest(int((signs > 0).sum()), len(signs)).pvalue > 1e-4, operation.name


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


@every_policy
def test_stages_have_signs_of_their_own(build: Build) -> None:
    draw = build().sample(MANY)
    if draw.stages > 1:
        agree = int((draw.sign[0] == draw.sign[1]).sum())
        assert stats.binomtest(agree, len(MANY)).pvalue > 1e-4


@every_policy
def test_a_new_seed_starts_anew(build: Build) -> None:
    images = torch.rand(40, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    policy = build(seed=3)
    first, second = policy(images), policy(images)
    assert not torch.equal(first, second)
    assert policy.manual_seed(3) is policy
    assert torch.equal(policy(images), first)
    assert not torch.equal(policy.manual_seed(4)(images), first)
    assert policy.seed == 4


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
