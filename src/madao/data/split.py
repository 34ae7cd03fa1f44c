"""Taking a validation split out of the training images."""

from collections.abc import Sequence

import torch
from torch import Tensor

from madao.data.errors import DataError


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


def check_classes(labels: Tensor, classes: Sequence[str], what: str) -> None:
    """Raise if a class has no image.

    Args:
        labels: int64 `[N]`.
        classes: Their names.
        what: Which split this is, for the error.
    """
    present = set(labels.unique().tolist())
    missing = [name for label, name in enumerate(classes) if label not in present]
    if missing:
        named = ", ".join(missing[:3]) + (", …" if len(missing) > 3 else "")
        raise DataError(
            f"the {what} split has no image of {len(missing)} of the {len(classes)} classes ({named}); "
            "add some, or make the split larger"
        )
