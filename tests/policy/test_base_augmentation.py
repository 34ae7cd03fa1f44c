"""Crop, flip, normalise and Cutout, against one image at a time."""

import dataclasses
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torchvision.transforms import functional as TF

from madao import BaseAugmentation, Policy, RandAugment
from madao.policy.base_augmentation import cut_out
from tests.helpers.policies import seeded

MEAN, STD = (0.49, 0.48, 0.45), (0.25, 0.24, 0.26)


def test_equals_torchvision_one_image_at_a_time(crops: Tensor) -> None:
    standard = BaseAugmentation(mean=MEAN, std=STD, seed=3)
    for images in (crops, crops.float() / 255):
        draw = standard.sample(images)
        result = standard.augment(images, draw)
        assert result.dtype == torch.float32
        for b, image in enumerate(crops):
            expected = TF.crop(TF.pad(image, 4), int(draw.top[b]), int(draw.left[b]), 32, 40)
            expected = TF.hflip(expected) if draw.flipped[b] else expected
            expected = TF.normalize(expected / 255, MEAN, STD)
            y, x = int(draw.hole_y[b]), int(draw.hole_x[b])
            expected[:, max(y - 8, 0) : y + 8, max(x - 8, 0) : x + 8] = 0
            torch.testing.assert_close(result[b], expected)


def test_draws_cover_their_range() -> None:
    images = torch.empty(20_000, 3, 1, 1).expand(-1, -1, 20, 30)
    draw = BaseAugmentation(padding=4).sample(images)
    assert draw.top.unique().tolist() == draw.left.unique().tolist() == list(range(9))
    assert draw.hole_y.unique().tolist() == list(range(20))
    assert draw.hole_x.unique().tolist() == list(range(30))
    assert 0.48 < draw.flipped.float().mean() < 0.52
    assert not torch.equal(draw.top, draw.left)
    assert not BaseAugmentation(flip=False).sample(images).flipped.any()


def test_a_relaxed_draw_reaches_the_policy_through_uint8_data(crops: Tensor) -> None:
    standard = BaseAugmentation(mean=MEAN, std=STD, policy=Policy())
    images = crops.repeat(20, 1, 1, 1)
    draw = standard.sample(images, relaxed=True)
    result = standard.augment(images, draw)
    assert draw.inner is not None
    assert standard.policy is not None
    (result * torch.linspace(0, 1, 40)).sum().backward()
    assert all(parameter.grad is not None and parameter.grad.any() for parameter in standard.policy.parameters())
    hard = standard.augment(images / 255, dataclasses.replace(draw, inner=draw.inner.detach()))
    torch.testing.assert_close(result.detach(), hard)
    assert not standard(images).requires_grad


def test_nothing_to_do_is_the_identity(crops: Tensor) -> None:
    images = crops / 255
    assert torch.equal(BaseAugmentation(padding=0, flip=False, cutout=0)(images), images)


def test_random_state_travels_and_policies_are_submodules(crops: Tensor) -> None:
    standard = BaseAugmentation(policy=Policy())
    standard(crops)
    other = BaseAugmentation(policy=Policy())
    other.load_state_dict(standard.state_dict())
    assert torch.equal(other(crops), standard(crops))
    assert sum(parameter.numel() for parameter in standard.parameters()) == 78


def test_empty_batch_and_odd_hole() -> None:
    assert BaseAugmentation()(torch.rand(0, 3, 8, 8)).shape == (0, 3, 8, 8)
    hole = cut_out(torch.ones(1, 1, 9, 9), torch.tensor([4]), torch.tensor([4]), 3)
    assert (hole == 0).sum() == 9
    assert hole[0, 0, 3:6, 3:6].sum() == 0


def test_in_evaluation_mode_it_prepares_images_as_an_evaluation_does(crops: Tensor) -> None:
    policy = RandAugment()
    base = BaseAugmentation(mean=MEAN, std=STD, policy=policy, size=24).eval()
    assert not policy.training
    assert torch.equal(base(crops), base.normalise(base.centre(crops)))
    assert torch.equal(base(crops), base(crops))
    draw = base.sample(crops, seeded())
    assert torch.equal(base.augment(crops, draw), base.train().augment(crops, draw))
    assert not torch.equal(base(crops), base(crops))


def test_draws_and_images_that_do_not_fit_are_refused() -> None:
    base, images = BaseAugmentation(policy=Policy()), torch.rand(6, 3, 8, 8)
    calls: dict[str, Callable[[], object]] = {
        "6": lambda: base.augment(images, base.sample(images[:1])),
        "only one": lambda: base.augment(images, BaseAugmentation().sample(images)),
        "relaxed": lambda: BaseAugmentation(policy=RandAugment()).sample(images, relaxed=True),
        "channels": lambda: BaseAugmentation(mean=MEAN, std=STD)(images[:, :1]),
    }
    for message, call in calls.items():
        with pytest.raises(ValueError, match=message):
            call()


def test_constants_cached_in_inference_mode_allow_gradients() -> None:
    mean, std = (0.123, 0.4, 0.5), (0.2, 0.3, 0.321)  # not used elsewhere, so that evaluation asks first
    standard = BaseAugmentation(mean=mean, std=std)
    with torch.inference_mode():
        standard.normalise(torch.rand(2, 3, 4, 4))
    images = torch.rand(2, 3, 4, 4, requires_grad=True)
    standard.normalise(images).sum().backward()
    assert images.grad is not None
    expected = 1 / torch.tensor(std).reshape(-1, 1, 1)
    assert torch.allclose(images.grad, expected.expand_as(images))
