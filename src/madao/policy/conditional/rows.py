"""The row of a policy's tables that an image reads, and the errors if its label or features do not fit."""

from collections.abc import Sequence

import torch
from torch import Tensor

_WHOLE = (torch.int64, torch.int32, torch.int16, torch.uint8)


def rows_of_labels(labels: Tensor | None, count: int, classes: Sequence[str]) -> Tensor:
    """Return each image's row in tables with one row per class."""
    if labels is None:
        raise ValueError(
            f"this policy has a part for each of {len(classes)} classes and needs the images' labels; give "
            "policy(images, labels), or use the part of one class, policy.spec().of_class(name)"
        )
    if labels.dtype not in _WHOLE or labels.shape != (count,):
        raise ValueError(
            f"labels must be whole numbers, one for each of {count} images, got {labels.dtype} of shape "
            f"{list(labels.shape)}; a policy with classes cannot use mixed or soft labels"
        )
    if labels.device.type == "cpu" and count and not 0 <= int(labels.min()) <= int(labels.max()) < len(classes):
        raise ValueError(f"labels must lie in 0 to {len(classes) - 1}, got {int(labels.min())} to {int(labels.max())}")
    return labels.long()


def rows_of_features(features: Tensor | None, count: int, numbers: int) -> tuple[Tensor, Tensor]:
    """Return the features `[B, numbers]` and each image's row, in tables with one row per image."""
    if features is None:
        raise ValueError(
            "this policy's probabilities depend on the images, and a draw does not hold them; give "
            "policy.condition(images) beside it"
        )
    if features.shape != (count, numbers):
        raise ValueError(
            f"the condition must be what policy.condition(images) returns, {numbers} numbers for each of {count} "
            f"images, got shape {list(features.shape)}"
        )
    return features, torch.arange(count, device=features.device)
