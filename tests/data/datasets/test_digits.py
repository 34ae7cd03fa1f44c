"""The digits of scikit-learn and their synthetic shifts."""

import functools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from torch import Tensor
from torchvision.transforms import InterpolationMode
from torchvision.transforms import functional as TF

from madao.data import DATASETS, Dataset, DatasetRequest, InMemoryImages
from madao.data.datasets.synthetic_shift import (
    BY_CLASS,
    BY_TONE,
    FAMILIES,
    HALVES,
    SHIFTS,
    _strengths,
    dark_on_light,
    plant,
)
from madao.errors import DataError
from madao.ops import OPERATIONS

PLANTED = [*(name for name in SHIFTS if name != "none"), BY_CLASS, BY_TONE]


@functools.cache
def digits(planted: str = "none", side: int | None = None) -> Dataset:
    return DATASETS["digits"](DatasetRequest(Path("nowhere"), shift=planted, side=side))


def pixels(images: Any) -> InMemoryImages:
    assert isinstance(images, InMemoryImages)
    return images


def splits(dataset: Dataset) -> list[InMemoryImages]:
    return [pixels(part) for part in (dataset.train, dataset.validation, dataset.test)]


def contents(part: InMemoryImages) -> list[bytes]:
    return [image.numpy().tobytes() for image in part.images]


def some(count: int = 40) -> Tensor:
    """A few digits in [0, 1]."""
    return pixels(digits().train).images[:count] / 255


def even(first: float, second: float = 0.0, count: int = 40) -> Tensor:
    """The same strengths for every image."""
    return torch.tensor([[first], [second]]).repeat(1, count)


@pytest.mark.parametrize("planted", SHIFTS)
def test_sizes_and_classes(planted: str) -> None:
    dataset = digits(planted)
    copies = 1 if planted == "none" else 4
    assert [len(part) for part in splits(dataset)] == [899, 449 * copies, 449 * copies]
    assert dataset.classes == tuple("0123456789")
    assert not dataset.flip
    for part in splits(dataset):
        assert part.shape == (1, 16, 16)
        assert part.images.dtype == torch.uint8
        assert part.labels.unique().tolist() == list(range(10))
        assert part.labels.bincount().min() >= 30 * (1 if part is dataset.train else copies)


def test_splits_have_no_digit_in_common_and_leave_none_out() -> None:
    """No two of scikit-learn's digits are the same to the pixel."""
    train, validation, test = (set(contents(part)) for part in splits(digits()))
    assert not train & validation
    assert not train & test
    assert not validation & test
    assert len(train | validation | test) == 1797


def test_images_are_scikit_learns_with_their_labels() -> None:
    """Means over squares of 2 × 2 pixels of the enlarged image are close to the pixels they come from."""
    bundled = load_digits()
    small = torch.from_numpy(bundled.images).float() / 16
    for part in splits(digits()):
        back = torch.nn.functional.avg_pool2d(part.images / 255, 2)[:, 0]
        distance = torch.cdist(back.flatten(1), small.flatten(1))
        nearest = distance.argmin(1)
        assert torch.equal(part.labels, torch.from_numpy(bundled.target)[nearest].to(torch.int64))
        assert (back - small[nearest]).abs().mean() < 0.05
        assert abs(float(nearest.float().mean()) - 898) < 90  # from all over: they come ordered by writer


def toned(light: Tensor, like: Tensor) -> Tensor:
    """The digits, dark where those of `like` are, which is every second one."""
    dark = dark_on_light(like)
    assert 0.4 < dark.float().mean() < 0.6
    return torch.where(dark.reshape(-1, 1, 1, 1), 255 - light, light)


@pytest.mark.parametrize("planted", PLANTED)
def test_training_digits_are_the_same_whatever_is_planted(planted: str) -> None:
    plain, moved = pixels(digits().train), pixels(digits(planted).train)
    assert torch.equal(toned(plain.images, moved.images) if planted == BY_TONE else plain.images, moved.images)
    assert torch.equal(plain.labels, moved.labels)


@pytest.mark.parametrize("planted", PLANTED)
def test_the_others_are_moved_four_times_each(planted: str) -> None:
    for seed, (plain, moved) in enumerate(zip(splits(digits()), splits(digits(planted)), strict=True)):
        if seed == 0:
            continue  # training digits
        assert torch.equal(moved.labels, plain.labels.repeat(4))
        light = plain.images
        if planted == BY_TONE:
            # A corner has no ink: the darkest of the dark digits has a tenth of 255 there.
            dark = moved.images[:, 0, 0, 0].reshape(4, -1).amin(0) > 20
            assert 0.4 < dark.float().mean() < 0.6
            light = torch.where(dark.reshape(-1, 1, 1, 1), 255 - light, light)
        assert torch.equal(moved.images, plant(light.repeat(4, 1, 1, 1), moved.labels, planted, seed))
        copies = moved.images.reshape(4, 449, -1)
        assert (copies[0] != copies[1]).any(1).float().mean() > 0.4  # another strength; every second is inverted


@pytest.mark.parametrize("strength", [-1.0, -0.4, 0.0, 0.5, 1.0])
def test_rotation_is_torchvisions_to_thirty_degrees(strength: float) -> None:
    images = some()
    expected = TF.rotate(images, 30 * strength, InterpolationMode.BILINEAR)
    torch.testing.assert_close(SHIFTS["rotate"](images, even(strength)), expected, rtol=0, atol=1e-4)


def test_every_second_image_is_inverted() -> None:
    images = some(2)
    result = SHIFTS["invert"](images, torch.tensor([[0.3, -0.3], [0.0, 0.0]]))
    assert torch.equal(result[0], 1 - images[0])
    assert torch.equal(result[1], images[1])


def test_each_image_has_a_strength_of_its_own() -> None:
    images = some(3)
    strength = torch.tensor([[0.9, -0.2, 0.4], [-0.6, 0.3, 0.8]])
    for shift in SHIFTS.values():
        one_by_one = [shift(images[i : i + 1], strength[:, i : i + 1]) for i in range(3)]
        torch.testing.assert_close(shift(images, strength), torch.cat(one_by_one))


def test_translation_is_a_quarter_of_each_side() -> None:
    images = some()
    for x, y in ((1, 0), (-1, 0), (0, 1), (0, -1), (1, -1), (0.5, 0.25)):
        padded = torch.nn.functional.pad(images, [4] * 4)
        top, left = round(4 + 4 * y), round(4 + 4 * x)
        expected = padded[:, :, top : top + 16, left : left + 16]
        torch.testing.assert_close(SHIFTS["translate"](images, even(x, y)), expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("strength", [-1.0, 0.3, 1.0])
def test_shear_moves_each_row_by_half_its_distance_from_the_middle(strength: float) -> None:
    images = some()
    result = SHIFTS["shear"](images, even(strength))
    columns = np.arange(16)
    for row in range(16):
        places = columns + 0.5 * strength * (row - 7.5)
        for image, moved in zip(images[:, 0, row], result[:, 0, row], strict=True):
            line = np.interp(places, np.arange(-1, 17), np.pad(image.numpy(), 1))
            np.testing.assert_allclose(moved.numpy(), line, rtol=0, atol=1e-5)


def test_brightness_is_a_factor_from_a_fifth_to_nine_fifths() -> None:
    images = some()
    for strength, factor in ((1.0, 1.8), (-1.0, 0.2), (0.0, 1.0), (0.5, 1.4)):
        result = SHIFTS["brightness"](images, even(strength))
        torch.testing.assert_close(result, (factor * images).clamp(max=1), rtol=0, atol=1e-6)
    assert (1.8 * images > 1).any()


@pytest.mark.parametrize("shift", SHIFTS)
def test_no_shift_and_no_strength_change_nothing(shift: str) -> None:
    torch.testing.assert_close(SHIFTS[shift](some(), even(0.0)), some(), rtol=0, atol=1e-5)
    images = pixels(digits().train).images
    assert torch.equal(plant(images, torch.zeros(len(images)), "none", 3), images)


def test_strengths_are_uniform_and_independent() -> None:
    strength = _strengths(20_000, seed=0)
    assert strength.shape == (2, 20_000)
    for row in strength:
        counts = torch.histc(row, bins=10, min=-1, max=1)
        assert counts.sum() == 20_000
        assert (counts - 2000).abs().max() < 200
    assert torch.corrcoef(strength)[0, 1].abs() < 0.03


@pytest.mark.parametrize("shift", PLANTED)
def test_a_seed_gives_the_same_and_another_another(shift: str) -> None:
    images, labels = pixels(digits().train).images[:50], pixels(digits().train).labels[:50]
    state = torch.get_rng_state()
    first = plant(images, labels, shift, 3)
    assert first.dtype == torch.uint8
    assert torch.equal(first, plant(images, labels, shift, 3))
    assert not torch.equal(first, plant(images, labels, shift, 4))
    assert torch.equal(torch.get_rng_state(), state)


def test_operations_undo_each_shift() -> None:
    assert FAMILIES.keys() == {*SHIFTS, BY_CLASS, BY_TONE}
    names = [name for shift in SHIFTS for name in FAMILIES[shift]]
    assert set(names) <= OPERATIONS.keys()
    for shift in (BY_CLASS, BY_TONE):
        assert set(FAMILIES[shift]) <= OPERATIONS.keys()
        assert len(FAMILIES[shift]) == len(HALVES)
    assert len(names) == len(set(names))
    assert [name for name, family in FAMILIES.items() if not family] == ["none"]


@pytest.mark.parametrize("shift", [BY_CLASS, BY_TONE])
def test_each_half_of_the_digits_moves_in_its_own_way(shift: str) -> None:
    source = pixels(digits().validation)
    images, labels = source.images, source.labels
    if shift == BY_TONE:
        images = torch.where(torch.rand(len(images), 1, 1, 1) < 0.5, images, 255 - images)
    moved = plant(images, labels, shift, 3)
    of_half = [torch.isin(labels, torch.tensor([int(digit) for digit in half])) for half in HALVES]
    if shift == BY_TONE:
        dark = dark_on_light(images)
        assert torch.equal(dark, images[:, 0, 0, 0] > 127)  # by a corner, where no ink is
        of_half = [~dark, dark]
    assert 0.4 < of_half[0].float().mean() < 0.6
    rotated = plant(images, labels, "rotate", 3)
    assert torch.equal(moved[of_half[0]], rotated[of_half[0]])
    before, after = (each[of_half[1]].float().flatten(1) for each in (images, moved))
    levels = (after.sum(1) / before.sum(1)).tolist()
    # What is brighter than white stays white.
    assert all(0.09 < level < 0.41 or 1 <= level < 1.91 for level in levels)
    assert 0.4 < sum(level < 1 for level in levels) / len(levels) < 0.6
    assert digits().classes == HALVES[0] + HALVES[1]


def test_side_resizes_every_split() -> None:
    for planted in ("none", "rotate"):
        for own, scaled in zip(splits(digits(planted)), splits(digits(planted, 24)), strict=True):
            assert scaled.shape == (1, 24, 24)
            assert torch.equal(scaled.images, own.resized(24).images)
            assert torch.equal(scaled.labels, own.labels)


def test_an_unknown_shift_is_refused() -> None:
    with pytest.raises(DataError, match=r"`data.shift` must be one of rotate, .* by-tone, got 'rotation'"):
        digits("rotation")
