"""One class a pixel: masks move with their images."""

import torch
from torch import Tensor

from madao.ops.geometric import warp
from madao.ops.targets import move_masks
from madao.policy import AugmentationPolicy, BaseAugmentation, BaseDraw
from madao.tasks.base import Draws, EvalResult, Metric, Task

IGNORED = 255
"""The class of pixels that do not count: those from outside of the image, and what the data says."""


class Segmentation(Task):
    """Cross-entropy, each image's mean over its pixels that count; the error is 1 − mIoU. Targets: uint8 `[B, H, W]`.

    Geometric operations move the mask with the image, to the nearest pixel; tone operations and Cutout leave it.

    The forward value is always such a hard mask. Its derivative in the magnitudes, without which operations would seem
    to move the image away from its mask, is that of the mask read bilinearly, class by class: straight-through.

    Args:
        classes: How many there are.
    """

    name = "segmentation"
    metric_name = "mIoU error"
    train_metric_name = "pixel error"
    targets_follow_policy = True

    def __init__(self, classes: int) -> None:
        self.classes = classes

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The loss of each image.

        Args:
            outputs: Logits, `[B, K, H, W]`.
            targets: Masks; or each pixel's weight in the loss by class, `[B, K, H, W]`, as `along` gives it.
        """
        log_prob = outputs.log_softmax(1)
        if targets.is_floating_point():
            return -(targets * log_prob).sum((1, 2, 3))
        counted = targets != IGNORED
        picked = log_prob.gather(1, torch.where(counted, targets, 0).long()[:, None])[:, 0]
        return -(picked * counted).sum((1, 2)) / counted.sum((1, 2)).clamp(min=1)

    def num_errors(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The sum over images of the part of pixels that are wrong."""
        counted = targets != IGNORED
        num_errors = (outputs.argmax(1) != targets) & counted
        return (num_errors.sum((1, 2)) / counted.sum((1, 2)).clamp(min=1)).sum()

    def measure(self) -> "Confusion":
        """MIoU and the part of pixels that are wrong."""
        return Confusion(self.classes)

    def cropped(self, standard: BaseAugmentation, targets: Tensor, draw: BaseDraw, again: object) -> Tensor:
        """The masks, cropped and flipped as their images."""
        return standard.before_masks(targets if standard.scale is not None else _centre(standard, targets), draw)

    def inner(self, policy: AugmentationPolicy | None, targets: Tensor, draws: Draws) -> Tensor:
        """The masks, moved as their images."""
        return targets if policy is None or draws is None else policy.augment_masks(targets, draws[0], IGNORED)

    def soft_targets(self, policy: AugmentationPolicy, targets: Tensor, draws: Draws) -> Tensor:
        """The weight of each pixel in the loss by class, `[B, K, H, W]`: one over how many count, at its own class."""
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
                # Exactly zero, with the derivative in it.
                soft = self._one_hot(moved) + (slope - slope.detach()) * (moved != IGNORED)[:, None]
            else:
                soft = self._one_hot(moved)
            hard = moved
        return soft / (hard != IGNORED).sum((1, 2)).clamp(min=1).reshape(-1, 1, 1, 1)

    def outer(self, standard: BaseAugmentation, images: Tensor, targets: Tensor, crop: object) -> tuple[Tensor, Tensor]:
        """The middle of images and masks."""
        return standard.centre(images), _centre(standard, targets)

    def _one_hot(self, masks: Tensor) -> Tensor:
        """`[B, K, H, W]`, nothing where a pixel does not count."""
        return (masks[:, None] == torch.arange(self.classes, device=masks.device).reshape(-1, 1, 1)).float()


class Confusion(Metric):
    """How often pixels of one class are taken for another.

    IoU_k = n_kk / (Σ_j n_jk + Σ_j n_kj − n_kk); the mean is over classes that there are, in masks or in outputs.

    Args:
        classes: How many there are.
    """

    def __init__(self, classes: int) -> None:
        self.classes = classes
        self._table = torch.zeros(classes, classes, dtype=torch.float64)  # rows: what it is
        self._loss, self._images = 0.0, 0

    def targets(self, standard: BaseAugmentation, targets: Tensor) -> Tensor:
        """The middle of the masks."""
        return _centre(standard, targets)

    def add(self, outputs: Tensor, targets: Tensor) -> None:
        """Logits `[B, K, H, W]` and masks."""
        self._loss += float(Segmentation(self.classes).losses(outputs, targets).double().sum())
        self._images += len(targets)
        # What does not count is counted behind the table.
        place = torch.where(targets == IGNORED, self.classes**2, targets.long() * self.classes + outputs.argmax(1))
        counts = torch.bincount(place.flatten(), minlength=self.classes**2 + 1)[:-1]
        self._table += counts.reshape(self.classes, self.classes).cpu()

    def sums(self) -> Tensor:
        """Loss, images, and the table."""
        return torch.cat([torch.tensor([self._loss, self._images], dtype=torch.float64), self._table.flatten()])

    def score(self, sums: Tensor) -> EvalResult:
        """1 − mIoU."""
        count, table = int(sums[1]), sums[2:].reshape(self.classes, self.classes)
        right, union = table.diagonal(), table.sum(0) + table.sum(1) - table.diagonal()
        there = union > 0
        if not there.any():
            return EvalResult(0.0, 0.0, count)
        overlap = float((right[there] / union[there]).mean())
        num_errors = 1 - float(right.sum() / table.sum().clamp(min=1))
        return EvalResult(float(sums[0]) / count, 1 - overlap, count, {"mIoU": overlap, "pixel_error": num_errors})


def _centre(standard: BaseAugmentation, masks: Tensor) -> Tensor:
    return standard.centre(masks[:, None])[:, 0]
