"""Stratified splits."""

import pytest
import torch

from madao.data import check_classes, stratified, stratified_subset
from madao.errors import DataError

LABELS = torch.tensor([0] * 100 + [1] * 30 + [2] * 2 + [4] * 3)[torch.randperm(135, generator=torch.Generator())]


@pytest.mark.parametrize(("fraction", "expected"), [(0.2, [20, 6, 1, 0, 1]), (0.99, [99, 29, 1, 0, 2])])
def test_each_class_gives_the_same_fraction(fraction: float, expected: list[int]) -> None:
    train, validation = stratified(LABELS, fraction, seed=0)
    assert LABELS[validation].bincount().tolist() == expected
    assert sorted(train.tolist() + validation.tolist()) == list(range(135))
    for indices in (train, validation):
        assert indices.dtype == torch.int64
        assert torch.equal(indices, indices.sort().values)


def test_the_seed_decides_and_the_global_state_does_not() -> None:
    first = stratified(LABELS, 0.2, seed=1)[1]
    torch.manual_seed(5)
    state = torch.get_rng_state()
    assert torch.equal(stratified(LABELS, 0.2, seed=1)[1], first)
    assert torch.equal(torch.get_rng_state(), state)
    assert not torch.equal(stratified(LABELS, 0.2, seed=2)[1], first)


def test_mistakes() -> None:
    for fraction in (0.0, 1.0, -0.1):
        with pytest.raises(DataError, match=f"`data.val_fraction` must lie between 0 and 1, got {fraction}"):
            stratified(LABELS, fraction, seed=0)
    lonely = torch.tensor([0, 0, 1])
    with pytest.raises(DataError, match=r"^class 1 has one image, a split needs two or more of each class; add images"):
        stratified(lonely, 0.5, seed=0)
    with pytest.raises(DataError, match="dog"):
        stratified(lonely, 0.5, seed=0, classes=("cat", "dog"))
    for count, least in ((3, 1), (136, 1), (10, 3)):
        with pytest.raises(DataError, match=f"cannot choose {count} of 135 images with at least {least} of each of 4"):
            stratified_subset(LABELS, count, 0, least)


@pytest.mark.parametrize(
    ("count", "least", "expected"),
    [
        (135, 1, [100, 30, 2, 0, 3]),
        (134, 1, [99, 30, 2, 0, 3]),
        (27, 1, [19, 6, 1, 0, 1]),
        (10, 2, [4, 2, 2, 0, 2]),
        (9, 2, [3, 2, 2, 0, 2]),
        (8, 2, [2, 2, 2, 0, 2]),
        (4, 1, [1, 1, 1, 0, 1]),
    ],
)
def test_a_subset_is_exact_and_has_some_of_each_class(count: int, least: int, expected: list[int]) -> None:
    chosen = stratified_subset(LABELS, count, 0, least)
    assert LABELS[chosen].bincount().tolist() == expected
    assert torch.equal(chosen, chosen.unique())


@pytest.mark.parametrize("count", [450, 500, 999, 1019])
def test_a_subset_of_many_small_classes_is_even(count: int) -> None:
    numbers = (torch.arange(1020) % 102)[stratified_subset(torch.arange(1020) % 102, count, 3)].bincount()
    assert numbers.sum() == count
    assert numbers.max() - numbers.min() <= 1


def test_a_subset_takes_validation_images_last() -> None:
    labels = torch.arange(300) % 3
    for seed in (0, 1):
        aside = set(stratified(labels, 0.1, seed)[1].tolist())
        assert not aside & set(stratified_subset(labels, 270, seed).tolist())
        assert len(aside & set(stratified_subset(labels, 280, seed).tolist())) == 10
    assert not torch.equal(stratified_subset(labels, 30, 0), stratified_subset(labels, 30, 1))


def test_check_classes() -> None:
    names = ("a", "b", "c", "d", "e", "f")
    check_classes(torch.arange(6), names, "validation")
    with pytest.raises(DataError, match=r"the validation split has no image of 1 of the 6 classes \(d\); add images"):
        check_classes(torch.tensor([0, 1, 2, 4, 5]), names, "validation")
    with pytest.raises(DataError, match=r"test .* 5 of the 6 classes .*b, c, d, …"):
        check_classes(torch.tensor([0]), names, "test")
