"""Stratified splits and subsets of labelled images."""

from collections.abc import Sequence

import torch
from torch import Tensor

from madao.errors import DataError


def stratified(
    labels: Tensor, fraction: float, seed: int, classes: Sequence[str] | None = None
) -> tuple[Tensor, Tensor]:
    """Split images at random into training and validation images, with the same fraction of each class.

    Each class has at least one image in either split.

    Args:
        labels: Label of each image, int64 `[N]`.
        fraction: Fraction of validation images, between 0 and 1.
        seed: Seed of the split.
        classes: Class names, for error messages.

    Returns:
        Sorted indices of the training images, and of the validation images.

    Raises:
        DataError: If a class has a single image, or `fraction` is out of range.
    """
    if not 0 < fraction < 1:
        raise DataError(f"`data.val_fraction` must lie between 0 and 1, got {fraction}")
    generator = torch.Generator().manual_seed(seed)
    validation = torch.zeros(len(labels), dtype=torch.bool)
    for label in labels.unique().tolist():
        members = (labels == label).nonzero().flatten()
        count = len(members)
        if count == 1:
            name = f"class {label}" if classes is None else f"class {label} ({classes[label]})"
            raise DataError(
                f"{name} has one image, a split needs two or more of each class; add images or remove the class"
            )
        taken = min(max(round(fraction * count), 1), count - 1)
        validation[members[torch.randperm(count, generator=generator)[:taken]]] = True
    return (~validation).nonzero().flatten(), validation.nonzero().flatten()


def stratified_subset(labels: Tensor, count: int, seed: int, least: int = 1) -> Tensor:
    """Choose `count` images at random, with about the same fraction of each class.

    With the same seed, `stratified` takes its validation images from the beginning of a random order, and this function
    takes images from its end. So the validation images of a run on all images come into this subset last.

    Args:
        labels: Label of each image, int64 `[N]`.
        count: Exact number of images to choose: at most N, and enough for `least` of each class.
        seed: Seed of the choice.
        least: Minimal number of images of each class. A class with fewer images gives all of them.

    Returns:
        Sorted indices of the chosen images.
    """
    present, sizes = labels.unique(return_counts=True)
    base = sizes.clamp(max=least)
    if not base.sum() <= count <= len(labels):
        raise DataError(
            f"cannot choose {count} of {len(labels)} images with at least {least} of each of {len(present)} classes"
        )
    generator = torch.Generator().manual_seed(seed)
    taken = torch.maximum(base, count * sizes // len(labels))
    while (missing := count - int(taken.sum())) != 0:
        short = count * sizes - taken * len(labels)  # difference to the exact number, times N
        if missing > 0:
            taken[short.masked_fill(taken == sizes, short.min() - 1).argmax()] += 1
        else:
            taken[short.masked_fill(taken == base, short.max() + 1).argmin()] -= 1
    chosen = []
    for label, size, number in zip(present.tolist(), sizes.tolist(), taken.tolist(), strict=True):
        members = (labels == label).nonzero().flatten()
        chosen.append(members[torch.randperm(size, generator=generator)[size - number :]])
    return torch.cat(chosen).sort().values


def check_classes(labels: Tensor, classes: Sequence[str], split: str) -> None:
    """Raise a DataError if a class has no image.

    Args:
        labels: Label of each image, int64 `[N]`.
        classes: Class names.
        split: Name of the split, for the error message.
    """
    missing = missing_classes(labels, classes, split)
    if missing is not None:
        raise DataError(f"{missing}; add images, or make the split larger")


def missing_classes(labels: Tensor, classes: Sequence[str], split: str) -> str | None:
    """Return a sentence about the classes without an image in a split, or None if all classes have images."""
    present = set(labels.unique().tolist())
    missing = [name for label, name in enumerate(classes) if label not in present]
    named = ", ".join(missing[:3]) + (", …" if len(missing) > 3 else "")
    of = f"{len(missing)} of the {len(classes)} classes ({named})"
    return f"the {split} split has no image of {of}" if missing else None
