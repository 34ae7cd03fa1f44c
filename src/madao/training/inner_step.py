"""The inner step: crop and flip, the policy, forward, backward, the optimizer; on a GPU as one CUDA graph."""

import dataclasses
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from madao.distributed.group import Shard
from madao.distributed.sampling import sample_base_shard, sample_shard
from madao.outer.cuda_graph import CudaGraphRunner, GraphPool
from madao.policy import AugmentationPolicy, BaseAugmentation, BaseDraw
from madao.policy.seeded_module import SeededModule
from madao.tasks import Task


@dataclasses.dataclass(frozen=True)
class InnerResult:
    """The result of one step. A CUDA graph returns the same tensors at every step and overwrites them at the next."""

    cropped: Tensor  # the batch before the policy
    targets: Tensor  # before the policy
    draw: BaseDraw
    loss: Tensor  # the mean loss of the batch, or the part of it from this process's images
    num_errors: Tensor  # as `Task.num_errors` counts them


@dataclasses.dataclass(eq=False)
class InnerStep:
    """A training step of the weights."""

    model: nn.Module
    task: Task
    _: dataclasses.KW_ONLY
    backward: Callable[[Tensor], None]
    optimizer: torch.optim.Optimizer  # the caller sets its learning rate
    base_augmentation: BaseAugmentation
    policy: AugmentationPolicy | None
    accumulate: int = 1  # parts in which a batch passes through the model
    clip: float | None = None  # the largest norm of the gradient
    shard: Shard | None = None  # this process's images in the batch; None for a single process
    world: int = 1  # processes, over which the model averages gradients

    def __call__(self, images: Tensor, targets: Tensor, augment: bool) -> InnerResult:
        """Train on a batch of uint8 images, which pass through the policy if `augment`."""
        task = self.task
        shard = Shard.alone(len(images)) if self.shard is None else self.shard
        draw, cropped, targets = crop_batch(task, self.base_augmentation, images, targets, shard)
        augmented, draws = cropped, None
        if augment and self.policy is not None:
            draws = [sample_shard(self.policy, cropped, targets, shard) for _ in range(task.views)]
            augmented = self.policy.augment(cropped, draws[0])
        given = task.inner(self.policy, targets, draws)
        inputs = self.base_augmentation.after(augmented, draw)
        losses, num_errors = [], []
        self.optimizer.zero_grad()
        parts = inputs.tensor_split(self.accumulate), given.tensor_split(self.accumulate)
        for part_inputs, part_given in zip(*parts, strict=True):
            some = len(part_given) > 0  # a part is empty where images could not be read
            if not some and self.world == 1:
                continue
            outputs = self.model(part_inputs)
            # The other processes wait for the gradients of this one. The sum of no outputs is 0, their mean NaN.
            loss = task.loss(outputs, part_given) * (len(part_given) / shard.total) if some else outputs.sum()
            self.backward(loss * self.world)  # the model averages gradients over processes
            losses.append(loss.detach())
            num_errors.append(task.num_errors(outputs.detach(), part_given))
        if self.clip is not None:
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.clip)
        self.optimizer.step()
        self.optimizer.zero_grad()  # outer steps may use the memory of the gradients
        task.after_step(given)
        return InnerResult(cropped, targets, draw, torch.stack(losses).sum(), torch.stack(num_errors).sum())


class GraphedStep:
    """`InnerStep` recorded as a CUDA graph, for models whose steps take less time than their kernel launches.

    `random` are the modules from whose random numbers the step draws, and `memory` is shared with other graphs. `say`
    is called with a line if the step cannot be recorded.
    """

    def __init__(
        self,
        step: InnerStep,
        random: Sequence[SeededModule],
        say: Callable[[str], None],
        memory: GraphPool | None = None,
    ) -> None:
        self.recorder = CudaGraphRunner(self._run, "training steps", random, say, memory)
        self.step = step

    def __call__(self, images: Tensor, targets: Tensor, augment: bool) -> InnerResult:
        """Train on a batch, as `InnerStep` does."""
        return self.recorder(augment, (images, targets))

    def _run(self, augment: bool, batch: tuple[Tensor, ...]) -> InnerResult:
        images, targets = batch
        return self.step(images, targets, augment)


def crop_batch(
    task: Task, base_augmentation: BaseAugmentation, images: Tensor, targets: Tensor, shard: Shard
) -> tuple[BaseDraw, Tensor, Tensor]:
    """Draw base augmentation for a batch; return the draw, and images and targets before the policy."""
    draw, cropped = crop_and_flip(base_augmentation, images, shard)
    targets = task.cropped(base_augmentation, targets, draw, lambda: crop_and_flip(base_augmentation, images, shard)[1])
    return draw, cropped, targets


def crop_and_flip(
    base_augmentation: BaseAugmentation, images: Tensor, shard: Shard | None = None
) -> tuple[BaseDraw, Tensor]:
    """Draw base augmentation for images; return the draw and the images before the policy.

    Crops that are not resized are taken around the middle of the stored images.
    """
    if base_augmentation.scale is None:
        images = base_augmentation.centre(images)
    draw = sample_base_shard(base_augmentation, images, Shard.alone(len(images)) if shard is None else shard)
    return draw, base_augmentation.before(images, draw)
