"""Labelled images of one size, in memory or elsewhere."""

from collections.abc import Sequence
from typing import Protocol, Self

import torch
import torch.nn.functional as F
from torch import Tensor

from madao.errors import DataError


class Images(Protocol):
    """Labelled images of one size that are read when asked for."""

    @property
    def labels(self) -> Tensor:
        """The class of each image, int64 `[N]` on the CPU."""

    @property
    def targets(self) -> Tensor:
        """What is learned of each image: its label, or its mask, uint8 `[N, H, W]`."""

    @property
    def shape(self) -> tuple[int, int, int]:
        """Channels, height and width of each image."""

    def __len__(self) -> int: ...

    def load(self, indices: Sequence[int]) -> tuple[Tensor, list[int]]:
        """Images as uint8 `[n, C, H, W]`, and which of `indices` they are: the positions that could be read."""

    def subset(self, indices: Tensor) -> Self:
        """The images at `indices` only."""


class InMemoryImages:
    """Images in memory.

    Args:
        images: uint8 `[N, C, H, W]`, of one or three channels.
        labels: int64 `[N]`.
        masks: The class of each pixel, uint8 `[N, H, W]`, 255 where it does not count; where masks are what is learned.
    """

    def __init__(self, images: Tensor, labels: Tensor, masks: Tensor | None = None) -> None:
        if images.dtype != torch.uint8 or images.dim() != 4 or images.shape[1] not in (1, 3):
            raise DataError(
                f"images must be uint8 [N, C, H, W] of 1 or 3 channels, got {images.dtype} {list(images.shape)}"
            )
        check_labels(labels, len(images))
        if masks is not None and (masks.dtype != torch.uint8 or masks.shape != (len(images), *images.shape[2:])):
            expected = [len(images), *images.shape[2:]]
            raise DataError(f"masks must be uint8 {expected}, got {masks.dtype} {list(masks.shape)}")
        self.images, self.labels, self.masks = images, labels, masks

    @property
    def targets(self) -> Tensor:
        """The masks where there are any, else the labels."""
        return self.labels if self.masks is None else self.masks

    @property
    def shape(self) -> tuple[int, int, int]:
        """Channels, height and width of each image."""
        channels, height, width = self.images.shape[1:]
        return channels, height, width

    def __len__(self) -> int:
        return len(self.images)

    def load(self, indices: Sequence[int]) -> tuple[Tensor, list[int]]:
        """The images at `indices`, all of which can be read."""
        return self.images[torch.as_tensor(indices, dtype=torch.int64)], list(range(len(indices)))

    def subset(self, indices: Tensor) -> Self:
        """A copy of the images at `indices`."""
        masks = None if self.masks is None else self.masks[indices]
        return type(self)(self.images[indices], self.labels[indices], masks)

    def on(self, device: torch.device) -> "InMemoryImages":
        """Images and masks on a device; labels stay."""
        masks = None if self.masks is None else self.masks.to(device)
        return InMemoryImages(self.images.to(device), self.labels, masks)

    def resized(self, side: int | None) -> "InMemoryImages":
        """Scaled so that the shorter side is `side`, and cut to the square in the middle; None: as they are."""
        if side is None or self.shape[1:] == (side, side):
            return self
        _, height, width = self.shape
        cut = min(height, width)
        top, left = (height - cut) // 2, (width - cut) // 2
        squares = self.images[:, :, top : top + cut, left : left + cut]
        # In pieces: all images at once would be four times their memory as floats.
        scaled = [_scale(piece, side) for piece in squares.split(1024)]
        masks = self.masks
        if masks is not None:
            whole = masks[:, None, top : top + cut, left : left + cut].float()
            masks = F.interpolate(whole, size=(side, side), mode="nearest-exact")[:, 0].to(torch.uint8)
        return InMemoryImages(torch.cat(scaled), self.labels, masks)


def check_labels(labels: Tensor, count: int) -> None:
    """Raise unless there is one label per image, none below 0."""
    if labels.dtype != torch.int64 or labels.dim() != 1:
        raise DataError(f"labels must be int64 [N], got {labels.dtype} {list(labels.shape)}")
    if len(labels) != count:
        raise DataError(f"there must be one label per image, got {len(labels)} labels for {count} images")
    if count and labels.min() < 0:
        raise DataError(f"labels must count from 0, got {int(labels.min())}")


def _scale(images: Tensor, side: int) -> Tensor:
    scaled = F.interpolate(images.float(), size=(side, side), mode="bilinear", antialias=True)
    return scaled.round().clamp(0, 255).to(torch.uint8)
