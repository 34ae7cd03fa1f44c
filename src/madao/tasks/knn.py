"""The k-nearest-neighbour error of features: what they are worth without training anything on them."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from madao.tasks.classification import ClassErrors


class KNN(ClassErrors):
    """The k most similar images vote, each for its class with weight exp(cos / T) (Wu et al., 2018).

    The loss is −log of the vote's share for the right class.

    Args:
        classes: How many there are.
        neighbours: k; no more than a class has images, on average, where there are few.
        temperature: T.
    """

    compares = True

    def __init__(self, classes: int, neighbours: int = 200, temperature: float = 0.07) -> None:
        super().__init__(classes)
        self.classes, self.neighbours, self.temperature = classes, neighbours, temperature
        self._known: tuple[Tensor, Tensor] | None = None

    def outputs(self, model: nn.Module, inputs: Tensor) -> Tensor:
        """The features."""
        features: Tensor = model.features(inputs)  # type: ignore[operator]
        return features

    def compare_with(self, outputs: Tensor, targets: Tensor) -> None:
        """The features of labelled images, `[N, D]`, and their labels."""
        self._known = F.normalize(outputs, dim=1), targets

    def add(self, outputs: Tensor, targets: Tensor) -> None:
        """Features and labels of images to be told."""
        super().add(self.votes(outputs).clamp(min=1e-12).log(), targets)

    def votes(self, features: Tensor) -> Tensor:
        """The share of the vote for each class, `[B, classes]`."""
        if self._known is None:
            raise RuntimeError("there is nothing to compare with; call compare_with first")
        known, labels = self._known
        count = min(self.neighbours, max(len(known) // self.classes, 1))
        similarity, nearest = (F.normalize(features, dim=1) @ known.T).topk(count, 1)
        # The largest of a row taken off: shares stay what they are.
        weight = ((similarity - similarity[:, :1]) / self.temperature).exp()
        votes = torch.zeros(len(features), self.classes, dtype=weight.dtype, device=weight.device)
        votes.scatter_add_(1, labels[nearest], weight)
        return votes / votes.sum(1, keepdim=True)
