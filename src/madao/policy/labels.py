"""Which numbers of a policy belong to which image: those of its class, where the policy has classes."""

from collections.abc import Sequence

import torch
from torch import Tensor

_WHOLE = (torch.int64, torch.int32, torch.int16, torch.uint8)


def rows(labels: Tensor | None, count: int, classes: Sequence[str]) -> Tensor | None:
    """The row of a table `[K, C, n]` that each image reads, int64 `[B]`; None for all the only one.

    Args:
        labels: The class of each image, by its place in `classes`.
        count: How many images there are.
        classes: Of the policy; none where labels make no difference to it.
    """
    if not classes:
        return None
    if labels is None:
        raise ValueError(
            f"this policy has a part for each of {len(classes)} classes and needs to know the images'; give "
            "policy(images, labels), or use the part of one class, policy.spec().of_class(name)"
        )
    if labels.dtype not in _WHOLE or labels.shape != (count,):
        raise ValueError(
            f"labels must be whole numbers, one for each of {count} images, got {labels.dtype} of shape "
            f"{list(labels.shape)}; a policy with classes cannot do with mixed or soft labels"
        )
    if labels.device.type == "cpu" and count and not 0 <= int(labels.min()) <= int(labels.max()) < len(classes):
        raise ValueError(f"labels must lie in 0 to {len(classes) - 1}, got {int(labels.min())} to {int(labels.max())}")
    return labels.long()


def of_each(table: Tensor, which: Tensor | None) -> Tensor:
    """The row of each image, `[K, B, n]` from `[K, C, n]`; the only one, `[K, 1, n]`, where there are no classes."""
    return table if which is None else table.index_select(1, which)


def chosen(table: Tensor, choice: Tensor, which: Tensor | None) -> Tensor:
    """The entry of the operation each image draws, `[K, B]` from `[K, C, n]` and `choice`, `[K, B]`."""
    place = choice if which is None else choice + table.shape[2] * which
    return table.flatten(1).gather(1, place)
