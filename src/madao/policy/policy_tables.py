"""Which numbers of a policy belong to which image."""

import dataclasses
from collections.abc import Sequence

import torch
from torch import Tensor

_WHOLE = (torch.int64, torch.int32, torch.int16, torch.uint8)


@dataclasses.dataclass(frozen=True)
class PolicyTables:
    """What a batch is drawn by: tables `[K, R, n]`, of whose R rows each image reads one.

    Attributes:
        selection: Logits of the operations.
        application: Logits, or probabilities.
        magnitude: μ in [0, 1].
        rows: The row of each image, int64 `[B]`; None where all read the only one.
    """

    selection: Tensor
    application: Tensor
    magnitude: Tensor
    rows: Tensor | None = None

    def of_images(self, count: int) -> tuple[Tensor, Tensor, Tensor]:
        """Selection, application and magnitude of `count` images, `[K, B, n]` each."""
        tables = (self.of_each(table) for table in (self.selection, self.application, self.magnitude))
        selection, application, magnitude = (table.expand(-1, count, -1) for table in tables)
        return selection, application, magnitude

    def of_each(self, table: Tensor) -> Tensor:
        """The row of each image, `[K, B, n]`; the only one, `[K, 1, n]`, where all read it."""
        return table if self.rows is None else table.index_select(1, self.rows)

    def chosen(self, table: Tensor, choice: Tensor) -> Tensor:
        """The entry of the operation each image draws, `[K, B]` from `choice`, `[K, B]`."""
        place = choice if self.rows is None else choice + table.shape[2] * self.rows
        return table.flatten(1).gather(1, place)


def rows_of_labels(labels: Tensor | None, count: int, classes: Sequence[str]) -> Tensor:
    """The row each image reads where there is one for every class.

    Args:
        labels: The class of each image, by its place in `classes`.
        count: How many images there are.
        classes: Of the policy.
    """
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


def rows_of_features(features: Tensor | None, count: int, numbers: int) -> Tensor:
    """The row each image reads where there is one for every image.

    Args:
        features: Of each image, `[B, numbers]`.
        count: How many images there are.
        numbers: How many the policy looks at.
    """
    if features is None:
        raise ValueError(
            "the law of this policy depends on the images, and a draw does not hold them; give "
            "policy.condition(images) beside it"
        )
    if features.shape != (count, numbers):
        raise ValueError(
            f"the condition must be what policy.condition(images) returns, {numbers} numbers for each of {count} "
            f"images, got shape {list(features.shape)}"
        )
    return torch.arange(count, device=features.device)
