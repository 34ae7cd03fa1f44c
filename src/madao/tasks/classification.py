"""Classification: one class per image."""

import torch
import torch.nn.functional as F
from torch import Tensor

from madao.tasks.base import EvalResult, Metric, Task


class Classification(Task):
    """Classification by cross-entropy. The error is the fraction of misclassified images. Targets are int64 `[B]`.

    The number of classes is by default that of the model's outputs; it is required with several processes. Metrics are
    without label smoothing.
    """

    name = "classification"

    def __init__(self, classes: int | None = None, label_smoothing: float = 0.0) -> None:
        self.classes, self.label_smoothing = classes, label_smoothing

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the cross-entropy of each image."""
        return F.cross_entropy(outputs, targets, reduction="none", label_smoothing=self.label_smoothing)

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the mean cross-entropy, computed by a single kernel."""
        return F.cross_entropy(outputs, targets, label_smoothing=self.label_smoothing)

    def num_errors(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the number of misclassified images."""
        return (outputs.argmax(1) != targets).sum()

    def measure(self) -> "ClassErrors":
        """Return a metric of the error and the mean per-class error."""
        return ClassErrors(self.classes)


class ClassErrors(Metric):
    """A metric of the error and of the mean per-class error, over classes that have an image."""

    def __init__(self, classes: int | None = None) -> None:
        self._loss = 0.0
        self._counts = torch.zeros(2, classes or 0, dtype=torch.float64)  # misclassified and all images of each class

    def add(self, outputs: Tensor, targets: Tensor) -> None:
        """Add logits and labels."""
        if not self._counts.shape[1]:
            self._counts = torch.zeros(2, outputs.shape[1], dtype=torch.float64)
        classes = self._counts.shape[1]
        self._loss += float(F.cross_entropy(outputs, targets, reduction="sum").double())
        num_errors = outputs.argmax(1) != targets
        # One transfer to the host: row 0 counts right images of each class, row 1 wrong ones.
        found = torch.bincount(targets + classes * num_errors, minlength=2 * classes).reshape(2, classes).cpu()
        self._counts += torch.stack([found[1], found.sum(0)])

    def sums(self) -> Tensor:
        """Return the loss and the counts of each class."""
        return torch.cat([torch.tensor([self._loss], dtype=torch.float64), self._counts.flatten()])

    def score(self, sums: Tensor) -> EvalResult:
        """Compute error and mean per-class error."""
        num_errors, images = sums[1:].reshape(2, -1)
        count = int(images.sum())
        if not count:
            return EvalResult(0.0, 0.0, 0)
        there = images > 0
        mean = float((num_errors[there] / images[there]).mean())
        return EvalResult(float(sums[0]) / count, int(num_errors.sum()) / count, count, {"mean_class_error": mean})
