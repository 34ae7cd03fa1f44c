"""Linear evaluation: a linear classifier on frozen features, the usual measure of self-supervision."""

import contextlib
import dataclasses
import functools
import itertools
from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from madao.data import Batches, Images
from madao.errors import UserError
from madao.hypergrad.autodiff.functional_model import in_mode
from madao.policy import BaseAugmentation
from madao.tasks import Classification, EvalResult
from madao.training.evaluate import evaluate
from madao.training.inner_step import crop_and_flip


@dataclasses.dataclass(frozen=True)
class LinearProtocol:
    """The training of the classifier: SGD with momentum 0.9 and no weight decay, as in MoCo and the paper.

    Attributes:
        epochs: Passes over the training images. After 60 % and after 80 % of them the rate is divided by ten.
        lr: The learning rate at the start.
        batch_size: Images of one step.
        augment: Whether training images are cropped and flipped anew in every epoch, as in the protocol. Otherwise
            features are computed once, which is many times faster.
        seed: The seed of weights, crops and the order of images.
    """

    epochs: int = 100
    lr: float = 30.0
    batch_size: int = 256
    augment: bool = True
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("epochs", "lr", "batch_size"):
            if not getattr(self, name) > 0:
                raise UserError(f"`linear.{name}` must be above 0, got {getattr(self, name)}")


class Probe(nn.Module):
    """A linear classifier on the features of a frozen encoder."""

    def __init__(self, encoder: nn.Module, classifier: nn.Linear) -> None:
        super().__init__()
        self.encoder, self.classifier = encoder, classifier

    def forward(self, images: Tensor) -> Tensor:
        """Return the logits."""
        features: Tensor = self.encoder.features(images)  # type: ignore[operator]
        with torch.autocast(features.device.type, enabled=False):  # as in training
            logits: Tensor = self.classifier(features.float())
        return logits


def linear_evaluation(
    encoder: nn.Module,
    train: Images,
    test: Images,
    classes: int,
    base_augmentation: BaseAugmentation,
    protocol: LinearProtocol,
    autocast: torch.dtype | None = None,
    workers: int = 0,
) -> EvalResult:
    """Train a linear classifier on frozen features; return its error on test images.

    `encoder` is a module with a method `features`, on its device.
    """
    device = next(encoder.parameters()).device
    half = functools.partial(torch.autocast, device.type, dtype=autocast) if autocast else contextlib.nullcontext

    @torch.no_grad()
    def features(images: Tensor) -> Tensor:
        with half():
            found: Tensor = encoder.features(base_augmentation.normalise(images))  # type: ignore[operator]
        return found.float()

    base_augmentation.manual_seed(protocol.seed)
    every = functools.partial(Batches, device=device, workers=workers)
    batches = every(train, protocol.batch_size, seed=protocol.seed)
    with in_mode(encoder, "eval"):
        once = every(train, 500, shuffle=False, drop_last=False).epoch(0)
        once = itertools.islice(once, 1) if protocol.augment else once  # one batch tells the width of the features
        pairs = [(features(base_augmentation.centre(images)), labels) for images, labels in once]
        fixed, targets = (torch.cat(part) for part in zip(*pairs, strict=True))
        del pairs

        def examples(epoch: int) -> Iterator[tuple[Tensor, Tensor]]:
            if protocol.augment:
                for images, labels in batches.epoch(epoch):
                    yield features(crop_and_flip(base_augmentation, images)[1]), labels
                return
            for indices in batches.order(epoch).split(batches.batch_size)[: len(batches)]:
                here = indices.to(fixed.device)
                yield fixed[here], targets[here]

        weight = torch.randn(classes, fixed.shape[1], generator=torch.Generator().manual_seed(protocol.seed))
        classifier = nn.Linear(fixed.shape[1], classes, device=device)
        with torch.no_grad():
            classifier.weight.copy_(0.01 * weight)
            classifier.bias.zero_()
        optimizer = torch.optim.SGD(classifier.parameters(), lr=protocol.lr, momentum=0.9)
        milestones = [round(0.6 * protocol.epochs), round(0.8 * protocol.epochs)]
        schedule = torch.optim.lr_scheduler.MultiStepLR(optimizer, milestones)
        for epoch in range(protocol.epochs):
            for inputs, labels in examples(epoch):
                optimizer.zero_grad()
                F.cross_entropy(classifier(inputs), labels).backward()
                optimizer.step()
            schedule.step()
    shown = every(test, 500, shuffle=False, drop_last=False).epoch(0)
    return evaluate(
        Probe(encoder, classifier), shown, base_augmentation, autocast, metric=Classification(classes).measure()
    )
