"""Images in memory."""

from collections.abc import Sequence
from typing import Self

import torch
import torch.nn.functional as F
from torch import Tensor

from madao.data.images import check_labels
from madao.errors import DataError


class InMemoryImages:
    """Labelled images held in one tensor.

    Args:
        images: uint8 `[N, C, H, W]` with 1 or 3 channels.
        labels: int64 `[N]`.
        masks: For segmentation: the class of each pixel, uint8 `[N, H, W]`, `madao.labels.IGNORED` where it does not
            count.
    """

    def __init__(self, images: Tensor, labels: Tensor, masks: Tensor | None = None) -> None:
        if images.dtype != torch.uint8 or images.dim() != 4 or images.shape[1] not in (1, 3):
            raise DataError(
                f"images must be uint8 [N, C, H, W] with 1 or 3 channels, got {images.dtype} {list(images.shape)}"
            )
        check_labels(labels, len(images))
        if masks is not None and (masks.dtype != torch.uint8 or masks.shape != (len(images), *images.shape[2:])):
            expected = [len(images), *images.shape[2:]]
            raise DataError(f"masks must be uint8 {expected}, got {masks.dtype} {list(masks.shape)}")
        self.images, self.labels, self.masks = images, labels, masks

    @property
    def targets(self) -> Tensor:
        """The masks, or the labels if there are no masks."""
        return self.labels if self.masks is None else self.masks

    @property
    def shape(self) -> tuple[int, int, int]:
        """Channels, height and width of each image."""
        channels, height, width = self.images.shape[1:]
        return channels, height, width

    def __len__(self) -> int:
        return len(self.images)

    def load(self, indices: Sequence[int]) -> tuple[Tensor, list[int]]:
        """Return the images at `indices` and all positions in `indices`."""
        return self.images[torch.as_tensor(indices, dtype=torch.int64)], list(range(len(indices)))

    def subset(self, indices: Tensor) -> Self:
        """Return a copy of the images at `indices`."""
        masks = None if self.masks is None else self.masks[indices]
        return type(self)(self.images[indices], self.labels[indices], masks)

    def on(self, device: torch.device) -> "InMemoryImages":
        """Return the images and masks on a device. Labels stay on the CPU."""
        masks = None if self.masks is None else self.masks.to(device)
        return InMemoryImages(self.images.to(device), self.labels, masks)

    def resized(self, side: int | None) -> "InMemoryImages":
        """Return the central squares at `side` × `side` pixels, or the unchanged images if `side` is None."""
        if side is None or self.shape[1:] == (side, side):
            return self
        _, height, width = self.shape
        cut = min(height, width)
        top, left = (height - cut) // 2, (width - cut) // 2
        squares = self.images[:, :, top : top + cut, left : left + cut]
        # In chunks: as floats, all images together would take four times their memory.
        resized = [_resize(chunk, side) for chunk in squares.split(1024)]
        masks = self.masks
        if masks is not None:
            whole = masks[:, None, top : top + cut, left : left + cut].float()
            masks = F.interpolate(whole, size=(side, side), mode="nearest-exact")[:, 0].to(torch.uint8)
        return InMemoryImages(torch.cat(resized), self.labels, masks)


def _resize(images: Tensor, side: int) -> Tensor:
    resized = F.interpolate(images.float(), size=(side, side), mode="bilinear", antialias=True)
    return resized.round().clamp(0, 255).to(torch.uint8)
