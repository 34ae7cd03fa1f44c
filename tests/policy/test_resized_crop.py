"""Crops and resized crops, compared with other libraries one image at a time."""

import math
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from scipy.ndimage import map_coordinates
from torch import Tensor

from madao import BaseAugmentation, Policy, RandAugment
from madao.policy.base_augmentation import crop, resized_crop
from tests.helpers.policies import fields

WHOLE = (0.0, 0.0, 1.0, 1.0)


def boxes(*each: tuple[float, float, float, float]) -> Tensor:
    return torch.tensor(each).T


def many(count: int, height: int = 20, width: int = 30) -> Tensor:
    """Return images without memory: `sample` only reads their shape."""
    return torch.empty(count, 1, 1, 1).expand(-1, -1, height, width)


def drawn(count: int = 10_000, scale: float = 0.08) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    draw = BaseAugmentation(size=12, scale=scale).sample(many(count))
    assert draw.height is not None
    assert draw.width is not None
    return draw.top, draw.left, draw.height, draw.width


def test_the_whole_image_is_itself(crops: Tensor) -> None:
    box, no = boxes(*[WHOLE] * 16), torch.zeros(16, dtype=torch.bool)
    assert torch.equal(resized_crop(crops, box, no, 32, 40), crops)
    images = crops / 255
    torch.testing.assert_close(resized_crop(images, box, no, 32, 40), images, rtol=0, atol=1e-5)
    precise = images.double()
    result = resized_crop(precise, box, no, 32, 40)
    assert result.dtype == torch.float64
    torch.testing.assert_close(result, precise, rtol=0, atol=1e-12)


@pytest.mark.parametrize(("height", "width"), [(24, 24), (32, 40), (48, 60), (9, 7)])
def test_equals_scipy_at_any_box_to_its_edges(crops: Tensor, height: int, width: int) -> None:
    generator = torch.Generator().manual_seed(0)
    sides = 0.05 + 0.95 * torch.rand(2, 16, generator=generator, dtype=torch.float64)
    box = torch.cat([torch.rand(2, 16, generator=generator, dtype=torch.float64) * (1 - sides), sides])
    flipped = torch.rand(16, generator=generator) < 0.5
    result = resized_crop(crops.double() / 255, box, flipped, height, width)
    levels = resized_crop(crops, box, flipped, height, width)
    assert levels.dtype == torch.uint8
    assert (levels / 255 - result).abs().max() <= 0.501 / 255
    for b, image in enumerate(crops.double() / 255):
        top, left, tall, wide = box[:, b].tolist()
        y = (top + tall * (np.arange(height) + 0.5) / height) * 32 - 0.5
        x = (left + wide * (np.arange(width) + 0.5) / width) * 40 - 0.5
        where = np.meshgrid(y, x[::-1] if flipped[b] else x, indexing="ij")
        expected = np.stack([map_coordinates(channel.numpy(), where, order=1, mode="nearest") for channel in image])
        torch.testing.assert_close(result[b], torch.from_numpy(expected), rtol=0, atol=1e-12)


@pytest.mark.parametrize("scale", [0.08, 0.5, 1.0])
def test_boxes_lie_inside_the_image(scale: float) -> None:
    top, left, height, width = drawn(scale=scale)
    assert top.shape == left.shape == height.shape == width.shape == (10_000,)
    for first, side in ((top, height), (left, width)):
        assert first.min() >= 0
        assert (first + side).max() <= 1 + 1e-6
        assert side.min() > 0
    # Cut off at the image's side, an area above 3/4 may end up below its draw.
    assert (height * width).min() >= min(scale, math.sqrt(3 / 4 * scale)) - 1e-5
    ratio = width / height
    assert ratio.min() >= 3 / 4 - 1e-5
    assert ratio.max() <= 4 / 3 + 1e-5
    if scale <= 3 / 4:
        assert ratio.min() < 0.77
        assert ratio.max() > 1.3


def test_areas_ratios_and_places_are_even() -> None:
    """A side is cut off at the image's, which happens to areas of 3/4 and more alone: below, all is as it was drawn."""
    top, left, height, width = drawn(count=40_000)
    area = height * width
    small = area < 3 / 4 - 1e-5
    assert float(small.float().mean()) == pytest.approx((0.75 - 0.08) / (1 - 0.08), abs=0.01)
    assert float(area[small].mean()) == pytest.approx((0.08 + 0.75) / 2, abs=0.005)
    assert float(area[small].std()) == pytest.approx((0.75 - 0.08) / math.sqrt(12), abs=0.005)
    stretch = (width / height)[small].log() / math.log(4 / 3)
    assert float(stretch.mean()) == pytest.approx(0, abs=0.02)
    assert float(stretch.std()) == pytest.approx(1 / math.sqrt(3), abs=0.01)
    for first, side in ((top, height), (left, width)):
        place = first[small] / (1 - side[small])
        assert float(place.mean()) == pytest.approx(0.5, abs=0.01)
        assert float(place.std()) == pytest.approx(1 / math.sqrt(12), abs=0.01)
    drawings = torch.stack(
        [area, width / height, top / (1 - height).clamp(min=1e-6), left / (1 - width).clamp(min=1e-6)]
    )
    assert (torch.corrcoef(drawings[:, small]) - torch.eye(4)).abs().max() < 0.03


def test_crops_without_padding_are_windows_of_the_image(crops: Tensor) -> None:
    standard = BaseAugmentation(padding=0, cutout=0, size=12)
    images = crops.repeat(4, 1, 1, 1)
    draw = standard.sample(images)
    result = standard.augment(images, draw)
    assert result.shape == (64, 3, 12, 12)
    for b, image in enumerate(images):
        windows = image.unfold(1, 12, 1).unfold(2, 12, 1)  # every window there is
        window = windows[:, draw.top[b], draw.left[b]] / 255
        assert torch.equal(result[b], window.flip(2) if draw.flipped[b] else window)
    draw = standard.sample(many(5000, 16, 20))
    assert draw.top.unique().tolist() == list(range(5))
    assert draw.left.unique().tolist() == list(range(9))


def test_a_crop_has_the_height_and_width_it_is_given() -> None:
    image = torch.arange(30.0).reshape(1, 1, 5, 6)
    no, yes = torch.tensor([False]), torch.tensor([True])
    one, three = torch.tensor([1]), torch.tensor([3])
    assert torch.equal(crop(image, one, three, no, 0, 4, 2), image[:, :, 1:5, 3:5])
    assert torch.equal(crop(image, one, three, yes, 0, 4, 2), image[:, :, 1:5, 3:5].flip(3))
    assert torch.equal(crop(image, one, three, no, 2, 7, 3), F.pad(image, [2] * 4)[:, :, 1:8, 3:6])
    assert torch.equal(crop(image, one, one, no, 1, 5, 6), image)


@pytest.mark.parametrize("settings", [{"padding": 0, "size": 33}, {"padding": 4, "size": 41}])
def test_a_crop_that_does_not_fit_is_refused(crops: Tensor, settings: dict[str, Any]) -> None:
    standard = BaseAugmentation(**settings)
    with pytest.raises(ValueError, match="32 × 40"):
        standard.sample(crops)
    assert standard.centre(crops).shape[2] == 32  # all there is
    draw = BaseAugmentation().sample(crops)
    with pytest.raises(ValueError, match="32 × 40"):
        standard.augment(crops, draw)


def test_the_largest_that_fits_fits_and_a_resized_crop_always_does(crops: Tensor) -> None:
    assert BaseAugmentation(padding=4, size=40)(crops).shape == (16, 3, 40, 40)
    assert BaseAugmentation(padding=0, size=64, scale=0.5)(crops).shape == (16, 3, 64, 64)
    assert BaseAugmentation(scale=0.5)(crops).shape == crops.shape


def test_the_centre_is_the_middle(crops: Tensor) -> None:
    images = torch.arange(256 * 256).reshape(1, 1, 256, 256)
    for standard in (
        BaseAugmentation(size=224),
        BaseAugmentation(size=224, padding=0),
        BaseAugmentation(size=224, scale=0.08),
    ):
        assert torch.equal(standard.centre(images), images[:, :, 16:240, 16:240])
    assert torch.equal(BaseAugmentation(size=12).centre(crops), crops[:, :, 10:22, 14:26])
    assert torch.equal(BaseAugmentation().centre(crops), crops)


@pytest.mark.parametrize("scale", [None, 0.3])
def test_holes_fall_within_the_result(scale: float | None) -> None:
    draw = BaseAugmentation(size=12, scale=scale, padding=0).sample(many(5000))
    assert draw.hole_y.unique().tolist() == draw.hole_x.unique().tolist() == list(range(12))
    images = torch.ones(200, 1, 20, 30)
    holes = BaseAugmentation(size=12, scale=scale, padding=0, cutout=1)(images) == 0
    assert (holes.flatten(1).sum(1) == 1).all()


@pytest.mark.parametrize("scale", [None, 0.3])
def test_a_generator_gives_the_same_draw_again(crops: Tensor, scale: float | None) -> None:
    standard = BaseAugmentation(size=12, scale=scale)

    def sample(seed: int) -> list[Tensor]:
        return fields(standard.sample(crops, torch.Generator().manual_seed(seed)))

    state = torch.get_rng_state()
    assert len(sample(5)) == (5 if scale is None else 7)
    assert all(map(torch.equal, sample(5), sample(5)))
    assert not any(map(torch.equal, sample(5), sample(6)))
    assert torch.equal(torch.get_rng_state(), state)
    # Its own numbers go on where they were, whatever other generators gave.
    other = BaseAugmentation(size=12, scale=scale)
    assert all(map(torch.equal, fields(standard.sample(crops)), fields(other.sample(crops))))


@pytest.mark.parametrize("scale", [None, 0.3])
@pytest.mark.parametrize("policy", [None, RandAugment(2, 0.5), Policy()], ids=lambda policy: type(policy).__name__)
def test_apply_is_after_the_policy_after_before(crops: Tensor, policy: Any, scale: float | None) -> None:
    standard = BaseAugmentation(
        mean=(0.49, 0.48, 0.45), std=(0.25, 0.24, 0.26), policy=policy, size=24, scale=scale, cutout=6
    )
    for images in (crops, crops / 255):
        draw = standard.sample(images)
        before = standard.before(images, draw)
        assert before.shape == (16, 3, 24, 24)
        assert before.dtype == images.dtype
        between = before if policy is None else policy.augment(before, draw.inner)
        result = standard.augment(images, draw)
        assert torch.equal(result, standard.after(between, draw))
        assert ((result == 0).all(1).flatten(1).sum(1) >= 9).all()


def test_before_is_crop_and_flip_and_after_is_normalise_and_cutout(crops: Tensor) -> None:
    standard = BaseAugmentation(mean=(0.5,) * 3, std=(0.25,) * 3, size=24, scale=0.3, cutout=6)
    draw = standard.sample(crops)
    assert draw.height is not None
    assert draw.width is not None
    box = torch.stack([draw.top, draw.left, draw.height, draw.width])
    before = standard.before(crops, draw)
    assert torch.equal(before, resized_crop(crops, box, draw.flipped, 24, 24))
    expected = (before / 255 - 0.5) / 0.25
    for image, y, x in zip(expected, draw.hole_y.tolist(), draw.hole_x.tolist(), strict=True):
        image[:, max(y - 3, 0) : y + 3, max(x - 3, 0) : x + 3] = 0
    torch.testing.assert_close(standard.after(before, draw), expected)
