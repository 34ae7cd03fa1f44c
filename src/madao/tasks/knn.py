"""The k-nearest-neighbour error of features, a metric that needs no training."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from madao.tasks.classification import ClassErrors


class KNN(ClassErrors):
    """The error of a vote among nearest neighbours (Wu et al., 2018).

    The k most similar training images vote for their class, each with weight exp(cos / T). At most as many vote as a
    class has images on average. The loss is −log of the right class's share of the vote.
    """

    compares = True

    def __init__(self, classes: int, neighbours: int = 200, temperature: float = 0.07) -> None:
        super().__init__(classes)
        self.classes, self.neighbours, self.temperature = classes, neighbours, temperature
        self._known: tuple[Tensor, Tensor] | None = None

    def outputs(self, model: nn.Module, inputs: Tensor) -> Tensor:
        """Return the features."""
        features: Tensor = model.features(inputs)  # type: ignore[operator]
        return features

    def compare_with(self, outputs: Tensor, targets: Tensor) -> None:
        """Take the features of labelled images, `[N, D]`, and their labels."""
        self._known = F.normalize(outputs, dim=1), targets

    def add(self, outputs: Tensor, targets: Tensor) -> None:
        """Add features and labels of images to classify."""
        super().add(self.votes(outputs).clamp(min=1e-12).log(), targets)

    def votes(self, features: Tensor) -> Tensor:
        """Return each class's share of the vote, `[B, classes]`."""
        if self._known is None:
            raise RuntimeError("there is nothing to compare with; call compare_with first")
        known, labels = self._known
        count = min(self.neighbours, max(len(known) // self.classes, 1))
        similarity, nearest = (F.normalize(features, dim=1) @ known.T).topk(count, 1)
        # Subtracting the largest of a row does not change the shares.
        weight = ((similarity - similarity[:, :1]) / self.temperature).exp()
        votes = torch.zeros(len(features), self.classes, dtype=weight.dtype, device=weight.device)
        votes.scatter_add_(1, labels[nearest], weight)
        return votes / votes.sum(1, keepdim=True)
