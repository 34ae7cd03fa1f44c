"""Taking a validation split out of the training images."""

from collections.abc import Sequence

import torch
from torch import Tensor

from madao.errors import DataError


def stratified(
    labels: Tensor, fraction: float, seed: int, classes: Sequence[str] | None = None
) -> tuple[Tensor, Tensor]:
    """Split at random so that each class gives the same share, and at least one image to either side.

    Args:
        labels: int64 `[N]`.
        fraction: The share of the validation split, between 0 and 1.
        seed: Which split.
        classes: Their names, for the error.

    Returns:
        Indices of the training and of the validation images, sorted.
    """
    if not 0 < fraction < 1:
        raise DataError(f"the validation fraction must lie between 0 and 1, got {fraction}")
    generator = torch.Generator().manual_seed(seed)
    validation = torch.zeros(len(labels), dtype=torch.bool)
    for label in labels.unique().tolist():
        members = (labels == label).nonzero().flatten()
        count = len(members)
        if count == 1:
            name = f"class {label}" if classes is None else f"class {label} ({classes[label]})"
            raise DataError(f"{name} has one image, a split needs two or more of each class; add some or remove it")
        taken = min(max(round(fraction * count), 1), count - 1)
        validation[members[torch.randperm(count, generator=generator)[:taken]]] = True
    return (~validation).nonzero().flatten(), validation.nonzero().flatten()


def stratified_subset(labels: Tensor, count: int, seed: int, least: int = 1) -> Tensor:
    """Some of the images, chosen at random so that each class gives its share.

    They are the last of an order whose first `stratified` sets aside with the same seed, so that a training on few
    images has none, while there are others, that a training on all of them learned its policy from.

    Args:
        labels: int64 `[N]`.
        count: How many, exactly: at most N, and enough for `least` of each class.
        seed: Which.
        least: So many of each class in any case, or all of it where it has fewer.

    Returns:
        Their indices, sorted.
    """
    present, sizes = labels.unique(return_counts=True)
    base = sizes.clamp(max=least)
    if not base.sum() <= count <= len(labels):
        raise DataError(
            f"{count} of {len(labels)} images, {least} of each of {len(present)} classes at least, cannot be had"
        )
    generator = torch.Generator().manual_seed(seed)
    taken = torch.maximum(base, count * sizes // len(labels))
    while (missing := count - int(taken.sum())) != 0:
        short = count * sizes - taken * len(labels)  # of the exact share, times N
        if missing > 0:
            taken[short.masked_fill(taken == sizes, short.min() - 1).argmax()] += 1
        else:
            taken[short.masked_fill(taken == base, short.max() + 1).argmin()] -= 1
    chosen = []
    for label, size, number in zip(present.tolist(), sizes.tolist(), taken.tolist(), strict=True):
        members = (labels == label).nonzero().flatten()
        chosen.append(members[torch.randperm(size, generator=generator)[size - number :]])
    return torch.cat(chosen).sort().values


def check_classes(labels: Tensor, classes: Sequence[str], what: str) -> None:
    """Raise if a class has no image.

    Args:
        labels: int64 `[N]`.
        classes: Their names.
        what: Which split this is, for the error.
    """
    lacking = missing_classes(labels, classes, what)
    if lacking is not None:
        raise DataError(f"{lacking}; add some, or make the split larger")


def missing_classes(labels: Tensor, classes: Sequence[str], what: str) -> str | None:
    """Which classes have no image in a split, in words; None where all have."""
    present = set(labels.unique().tolist())
    missing = [name for label, name in enumerate(classes) if label not in present]
    named = ", ".join(missing[:3]) + (", …" if len(missing) > 3 else "")
    of = f"{len(missing)} of the {len(classes)} classes ({named})"
    return f"the {what} split has no image of {of}" if missing else None
