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
    """What one step leaves behind. In a graph these are the same tensors at every step, overwritten by the next.

    Attributes:
        cropped: The batch before the policy.
        targets: Its targets, as they are before the policy.
        draw: What standard augmentation did to it.
        loss: Its mean loss; of several processes one's own part of it.
        wrong: How many of its images were wrong.
    """

    cropped: Tensor
    targets: Tensor
    draw: BaseDraw
    loss: Tensor
    num_errors: Tensor


class InnerStep:
    """One step of the weights.

    Args:
        model: What is trained, called as `model(inputs)`.
        task: What is learned.
        backward: What takes the loss back through the model.
        optimizer: Of the weights; its learning rate is set by whoever calls.
        standard: Crop, flip, normalise and Cutout.
        policy: What stands between flip and normalise, if anything.
        accumulate: Parts in which a batch passes through the model.
        clip: Longest gradient that is used as it is; None for any.
        place: Of this process's images among those of all, whose gradients the model averages. By default there is
            one process.
        world: How many processes there are.
    """

    def __init__(
        self,
        model: nn.Module,
        task: Task,
        backward: Callable[[Tensor], None],
        optimizer: torch.optim.Optimizer,
        standard: BaseAugmentation,
        policy: AugmentationPolicy | None,
        accumulate: int = 1,
        clip: float | None = None,
        place: Shard | None = None,
        world: int = 1,
    ) -> None:
        self.place, self.world = place, world
        self.model, self.task, self.backward, self.optimizer = model, task, backward, optimizer
        self.standard, self.policy, self.accumulate, self.clip = standard, policy, accumulate, clip

    def __call__(self, images: Tensor, targets: Tensor, augment: bool) -> InnerResult:
        """Train on a batch, through the policy where `augment`."""
        task = self.task
        place = Shard.alone(len(images)) if self.place is None else self.place
        draw, cropped, targets = cropped_batch(task, self.standard, images, targets, place)
        augmented, draws = cropped, None
        if augment and self.policy is not None:
            draws = [sample_shard(self.policy, cropped, targets, place) for _ in range(task.views)]
            augmented = self.policy.augment(cropped, draws[0])
        given = task.inner(self.policy, targets, draws)
        inputs = self.standard.after(augmented, draw)
        losses, num_errors = [], []
        self.optimizer.zero_grad()
        parts = inputs.tensor_split(self.accumulate), given.tensor_split(self.accumulate)
        for part_inputs, part_given in zip(*parts, strict=True):
            some = len(part_given) > 0  # unless images could not be read
            if not some and self.world == 1:
                continue
            outputs = self.model(part_inputs)
            # Without images a sum, which is 0 where a mean is NaN: other processes wait for this one's gradients.
            loss = task.loss(outputs, part_given) * (len(part_given) / place.total) if some else outputs.sum()
            self.backward(loss * self.world)  # of which the model takes the mean over processes
            losses.append(loss.detach())
            num_errors.append(task.num_errors(outputs.detach(), part_given))
        if self.clip is not None:
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.clip)
        self.optimizer.step()
        self.optimizer.zero_grad()  # whose memory outer steps may use
        task.after_step(given)
        return InnerResult(cropped, targets, draw, torch.stack(losses).sum(), torch.stack(num_errors).sum())


class GraphedStep:
    """`InnerStep` recorded as a CUDA graph: one launch a step, where the step is bound by its launches.

    Args:
        step: What is recorded.
        random: Modules whose random numbers the step draws.
        say: Where it says that it could not be recorded.
        memory: What its graphs share with others.
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
        """Train on a batch, through the policy where `augment`."""
        return self.recorder(augment, (images, targets))

    def _run(self, augment: bool, batch: tuple[Tensor, ...]) -> InnerResult:
        images, targets = batch
        return self.step(images, targets, augment)


def cropped_batch(
    task: Task, standard: BaseAugmentation, images: Tensor, targets: Tensor, place: Shard
) -> tuple[BaseDraw, Tensor, Tensor]:
    """Images and targets before the policy, and what was drawn for the images."""
    draw, cropped = crop_and_flip(standard, images, place)
    return draw, cropped, task.cropped(standard, targets, draw, lambda: crop_and_flip(standard, images, place)[1])


def crop_and_flip(standard: BaseAugmentation, images: Tensor, place: Shard | None = None) -> tuple[BaseDraw, Tensor]:
    """What comes before the policy. Crops that are not resized are taken about the middle of what is stored."""
    if standard.scale is None:
        images = standard.centre(images)
    draw = sample_base_shard(standard, images, Shard.alone(len(images)) if place is None else place)
    return draw, standard.before(images, draw)
