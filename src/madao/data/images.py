"""The interface that all collections of labelled images share."""

from collections.abc import Sequence
from typing import Protocol, Self

import torch
from torch import Tensor

from madao.errors import DataError


class Images(Protocol):
    """Labelled images of one size, read on demand."""

    @property
    def labels(self) -> Tensor:
        """The class of each image, int64 `[N]` on the CPU."""

    @property
    def targets(self) -> Tensor:
        """The training target of each image: its label, or its mask in a uint8 `[N, H, W]`."""

    @property
    def shape(self) -> tuple[int, int, int]:
        """Channels, height and width of each image."""

    def __len__(self) -> int: ...

    def load(self, indices: Sequence[int]) -> tuple[Tensor, list[int]]:
        """Read images.

        Args:
            indices: Indices of the images to read.

        Returns:
            The readable images, uint8 `[n, C, H, W]`, and their positions in `indices`.
        """

    def subset(self, indices: Tensor) -> Self:
        """Return the images at `indices`."""


def check_labels(labels: Tensor, count: int) -> None:
    """Raise a DataError unless each image has one label and no label is negative."""
    if labels.dtype != torch.int64 or labels.dim() != 1:
        raise DataError(f"labels must be int64 [N], got {labels.dtype} {list(labels.shape)}")
    if len(labels) != count:
        raise DataError(f"there must be one label per image, got {len(labels)} labels for {count} images")
    if count and labels.min() < 0:
        raise DataError(f"labels must count from 0, got {int(labels.min())}")
