"""One class an image."""

import torch
import torch.nn.functional as F
from torch import Tensor

from madao.tasks.base import EvalResult, Metric, Task


class Classification(Task):
    """Cross-entropy; the error is the part of images that are misclassified. Targets are int64 `[B]`.

    Args:
        classes: How many there are. By default as many as the model has outputs; several processes have to know.
        label_smoothing: Of the loss, in inner and outer steps alike; what is measured is without.
    """

    name = "classification"

    def __init__(self, classes: int | None = None, label_smoothing: float = 0.0) -> None:
        self.classes, self.label_smoothing = classes, label_smoothing

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The cross-entropy of each image."""
        return F.cross_entropy(outputs, targets, reduction="none", label_smoothing=self.label_smoothing)

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The mean cross-entropy, by the one kernel there is for it."""
        return F.cross_entropy(outputs, targets, label_smoothing=self.label_smoothing)

    def num_errors(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """How many are misclassified."""
        return (outputs.argmax(1) != targets).sum()

    def measure(self) -> "ClassErrors":
        """Error and mean per-class error."""
        return ClassErrors(self.classes)


class ClassErrors(Metric):
    """The error, and beside it the mean over classes of each class's error, which small classes count in as large ones.

    Classes without an image do not count.

    Args:
        classes: How many there are. By default as many as there are outputs.
    """

    def __init__(self, classes: int | None = None) -> None:
        self._loss = 0.0
        self._counts = torch.zeros(2, classes or 0, dtype=torch.float64)  # misclassified and all images of each class

    def add(self, outputs: Tensor, targets: Tensor) -> None:
        """Logits and labels."""
        if not self._counts.shape[1]:
            self._counts = torch.zeros(2, outputs.shape[1], dtype=torch.float64)
        classes = self._counts.shape[1]
        self._loss += float(F.cross_entropy(outputs, targets, reduction="sum").double())
        num_errors = outputs.argmax(1) != targets
        # One transfer: row 0 of those that are right, row 1 of those that are wrong.
        found = torch.bincount(targets + classes * num_errors, minlength=2 * classes).reshape(2, classes).cpu()
        self._counts += torch.stack([found[1], found.sum(0)])

    def sums(self) -> Tensor:
        """The loss, and the counts."""
        return torch.cat([torch.tensor([self._loss], dtype=torch.float64), self._counts.flatten()])

    def score(self, sums: Tensor) -> EvalResult:
        """Error, and mean per-class error."""
        num_errors, images = sums[1:].reshape(2, -1)
        count = int(images.sum())
        if not count:
            return EvalResult(0.0, 0.0, 0)
        there = images > 0
        mean = float((num_errors[there] / images[there]).mean())
        return EvalResult(float(sums[0]) / count, int(num_errors.sum()) / count, count, {"mean_class_error": mean})
