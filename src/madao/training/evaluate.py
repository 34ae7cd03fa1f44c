"""Evaluation of a model on images that are not augmented."""

import contextlib
import functools
from collections.abc import Callable, Iterable, Iterator

import torch
from torch import Tensor, nn

from madao.data import Batches, Images
from madao.distributed.group import ProcessGroup
from madao.hypergrad.autodiff.functional_model import in_mode
from madao.policy import BaseAugmentation
from madao.tasks import Classification, EvalResult, Metric, Task
from madao.training.run.state import Run

_COMPARED = 50_000
"""The most training images, evenly spaced, to compare with: all of CIFAR's, and a cheap check on ImageNet."""


def evaluate_run(run: Run, images: Images) -> EvalResult:
    """Measure the model of a run on images that are not augmented."""
    run.ranks.broadcast_(run.evaluated.buffers())
    return evaluate_images(
        run.evaluated,
        images,
        run.splits.train,
        run.task,
        run.base_augmentation,
        autocast=run.autocast,
        ranks=run.ranks,
        workers=run.config.data.processes,
    )


def evaluate_images(
    model: nn.Module,
    images: Images,
    train: Images,
    task: Task,
    base_augmentation: BaseAugmentation,
    *,
    autocast: torch.dtype | None = None,
    ranks: ProcessGroup | None = None,
    batch_size: int = 500,
    workers: int = 0,
) -> EvalResult:
    """Measure a model by its task on images that processes share. Some metrics compare with the training images."""
    ranks = ProcessGroup() if ranks is None else ranks
    batches = functools.partial(
        Batches,
        batch_size=batch_size,
        device=next(model.parameters()).device,
        shuffle=False,
        drop_last=False,
        workers=workers,
        rank=ranks.rank,
        world=ranks.world,
    )

    def known() -> Iterator[tuple[Tensor, Tensor]]:
        few = len(train) <= _COMPARED
        return batches(train if few else train.subset(torch.arange(_COMPARED) * len(train) // _COMPARED)).epoch(0)

    return evaluate(model, batches(images).epoch(0), base_augmentation, autocast, ranks, task.measure(), known)


@torch.inference_mode()
def evaluate(
    model: nn.Module,
    batches: Iterable[tuple[Tensor, Tensor]],
    base_augmentation: BaseAugmentation,
    autocast: torch.dtype | None = None,
    ranks: ProcessGroup | None = None,
    metric: Metric | None = None,
    known: Callable[[], Iterable[tuple[Tensor, Tensor]]] | None = None,
) -> EvalResult:
    """Measure a model, in evaluation mode, on batches of uint8 images and targets on its device.

    Of several processes, each has a part of the batches; the result covers all. `known` returns batches of training
    images, for metrics that compare with them. The metric is by default that of classification.
    """
    metric = Classification().measure() if metric is None else metric

    def answers(batches: Iterable[tuple[Tensor, Tensor]]) -> Iterator[tuple[Tensor, Tensor]]:
        for images, targets in batches:
            inputs = base_augmentation.normalise(base_augmentation.centre(images))
            half = contextlib.nullcontext() if autocast is None else torch.autocast(images.device.type, dtype=autocast)
            with half:
                outputs = metric.outputs(model, inputs).float()
            yield outputs, metric.targets(base_augmentation, targets)

    with in_mode(model, "eval"):
        if metric.compares and known is not None:
            tensors = [torch.cat(part) for part in zip(*answers(known()), strict=True)]
            outputs, targets = tensors if ranks is None else [ranks.all_gather(tensor) for tensor in tensors]
            metric.compare_with(outputs, targets)
        for outputs, targets in answers(batches):
            metric.add(outputs, targets)
    sums = metric.sums()
    if ranks is not None and ranks.world > 1:
        sums = ranks.all_reduce_sum((sums.to(next(model.parameters()).device),))[0].cpu()
    return metric.score(sums)
