"""Segmentation: one class per pixel. Masks move with their images."""

import torch
from torch import Tensor

from madao.labels import IGNORED
from madao.ops.geometric import warp
from madao.ops.targets import move_masks
from madao.policy import AugmentationPolicy, BaseAugmentation, BaseDraw
from madao.tasks.base import Draws, EvalResult, Metric, Task


class Segmentation(Task):
    """Segmentation by cross-entropy, averaged over the pixels of each image. The error is 1 − mIoU.

    Targets are masks, uint8 `[B, H, W]`. Pixels of the class `IGNORED` do not count.

    Geometric operations move the mask with the image, to the nearest pixel. Tone operations and Cutout do not change
    it. The forward value is always such a hard mask. Its derivative with respect to the magnitudes is the derivative of
    a mask that is read bilinearly, class by class (straight-through). Without it, operations would seem to move the
    image and leave the mask behind.

    Args:
        classes: Number of classes.
    """

    name = "segmentation"
    metric_name = "mIoU error"
    train_metric_name = "pixel error"
    targets_follow_policy = True

    def __init__(self, classes: int) -> None:
        self.classes = classes

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return each image's loss, from logits `[B, K, H, W]` and masks or the weights that `soft_targets` returns."""
        log_prob = outputs.log_softmax(1)
        if targets.is_floating_point():
            return -(targets * log_prob).sum((1, 2, 3))
        counted = targets != IGNORED
        picked = log_prob.gather(1, torch.where(counted, targets, 0).long()[:, None])[:, 0]
        return -(picked * counted).sum((1, 2)) / counted.sum((1, 2)).clamp(min=1)

    def num_errors(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the sum over images of the fraction of wrong pixels."""
        counted = targets != IGNORED
        num_errors = (outputs.argmax(1) != targets) & counted
        return (num_errors.sum((1, 2)) / counted.sum((1, 2)).clamp(min=1)).sum()

    def measure(self) -> "Confusion":
        """Return a metric of mIoU and the fraction of wrong pixels."""
        return Confusion(self.classes)

    def cropped(self, base: BaseAugmentation, targets: Tensor, draw: BaseDraw, crop_again: object) -> Tensor:
        """Crop and flip the masks as their images."""
        return base.before_masks(targets if base.scale is not None else _centre(base, targets), draw)

    def inner(self, policy: AugmentationPolicy | None, targets: Tensor, draws: Draws) -> Tensor:
        """Move the masks as their images."""
        return targets if policy is None or draws is None else policy.augment_masks(targets, draws[0], IGNORED)

    def soft_targets(self, policy: AugmentationPolicy, targets: Tensor, draws: Draws) -> Tensor:
        """Return the weight of each pixel and class in the loss, `[B, K, H, W]`.

        The weight is 1 / (number of pixels that count) at the pixel's class and 0 elsewhere.
        """
        hard, soft = targets, self._one_hot(targets)
        for stage in range(0 if draws is None else draws[0].stages):
            assert draws is not None
            draw, (height, width) = draws[0], targets.shape[-2:]
            matrix = policy.stage_matrix(draw, stage, height, width, applied=False)
            kept = draw.applied[stage].reshape(-1, 1, 1)
            moved = torch.where(kept, move_masks(hard, matrix.detach(), IGNORED), hard)
            if matrix.requires_grad or draw.gate is not None:
                read = warp(soft, matrix.to(soft.dtype))
                slope = torch.where(kept[:, None], read, soft)
                if draw.gate is not None:
                    gate = draw.gate[stage].to(soft.dtype).reshape(-1, 1, 1, 1)
                    slope = slope + gate * (read - soft).detach()
                # The difference is exactly zero and carries the derivative.
                soft = self._one_hot(moved) + (slope - slope.detach()) * (moved != IGNORED)[:, None]
            else:
                soft = self._one_hot(moved)
            hard = moved
        return soft / (hard != IGNORED).sum((1, 2)).clamp(min=1).reshape(-1, 1, 1, 1)

    def outer(self, base: BaseAugmentation, images: Tensor, targets: Tensor, crop: object) -> tuple[Tensor, Tensor]:
        """Crop images and masks to their centre."""
        return base.centre(images), _centre(base, targets)

    def _one_hot(self, masks: Tensor) -> Tensor:
        """Encode masks as `[B, K, H, W]`, with zeros where a pixel does not count."""
        return (masks[:, None] == torch.arange(self.classes, device=masks.device).reshape(-1, 1, 1)).float()


class Confusion(Metric):
    """A metric of mIoU and pixel error, computed from the confusion matrix n.

    IoU_k = n_kk / (Σ_j n_jk + Σ_j n_kj − n_kk). The mean is over classes that occur in masks or outputs.
    """

    def __init__(self, classes: int) -> None:
        self.classes = classes
        self._table = torch.zeros(classes, classes, dtype=torch.float64)  # rows are true classes
        self._loss, self._images = 0.0, 0

    def targets(self, base: BaseAugmentation, targets: Tensor) -> Tensor:
        """Crop the masks to their centre."""
        return _centre(base, targets)

    def add(self, outputs: Tensor, targets: Tensor) -> None:
        """Add logits `[B, K, H, W]` and masks."""
        self._loss += float(Segmentation(self.classes).losses(outputs, targets).double().sum())
        self._images += len(targets)
        # One extra bin behind the table takes the pixels that do not count.
        place = torch.where(targets == IGNORED, self.classes**2, targets.long() * self.classes + outputs.argmax(1))
        counts = torch.bincount(place.flatten(), minlength=self.classes**2 + 1)[:-1]
        self._table += counts.reshape(self.classes, self.classes).cpu()

    def sums(self) -> Tensor:
        """Return the loss, the number of images, and the confusion matrix."""
        return torch.cat([torch.tensor([self._loss, self._images], dtype=torch.float64), self._table.flatten()])

    def score(self, sums: Tensor) -> EvalResult:
        """Compute 1 − mIoU and the pixel error."""
        count, table = int(sums[1]), sums[2:].reshape(self.classes, self.classes)
        right, union = table.diagonal(), table.sum(0) + table.sum(1) - table.diagonal()
        there = union > 0
        if not there.any():
            return EvalResult(0.0, 0.0, count)
        overlap = float((right[there] / union[there]).mean())
        num_errors = 1 - float(right.sum() / table.sum().clamp(min=1))
        return EvalResult(float(sums[0]) / count, 1 - overlap, count, {"mIoU": overlap, "pixel_error": num_errors})


def _centre(base: BaseAugmentation, masks: Tensor) -> Tensor:
    return base.centre(masks[:, None])[:, 0]
