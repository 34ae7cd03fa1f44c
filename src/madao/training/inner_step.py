"""The inner step: crop and flip, the policy, forward, backward, the optimizer; on a GPU as one CUDA graph."""

import dataclasses
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from madao.distributed.sampling import drawn, drawn_standard
from madao.hypergrad import Place
from madao.outer.cuda_graph import Recorder, SharedMemory
from madao.policy import AugmentationPolicy, Standard, StandardDraw
from madao.policy.seeded_module import OwnRandomness
from madao.tasks import Task


@dataclasses.dataclass(frozen=True)
class Trained:
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
    draw: StandardDraw
    loss: Tensor
    wrong: Tensor


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
        standard: Standard,
        policy: AugmentationPolicy | None,
        accumulate: int = 1,
        clip: float | None = None,
        place: Place | None = None,
        world: int = 1,
    ) -> None:
        self.place, self.world = place, world
        self.model, self.task, self.backward, self.optimizer = model, task, backward, optimizer
        self.standard, self.policy, self.accumulate, self.clip = standard, policy, accumulate, clip

    def __call__(self, images: Tensor, targets: Tensor, augment: bool) -> Trained:
        """Train on a batch, through the policy where `augment`."""
        task = self.task
        place = Place.alone(len(images)) if self.place is None else self.place
        draw, cropped, targets = cropped_batch(task, self.standard, images, targets, place)
        augmented, draws = cropped, None
        if augment and self.policy is not None:
            draws = [drawn(self.policy, cropped, targets, place) for _ in range(task.views)]
            augmented = self.policy.apply(cropped, draws[0])
        given = task.inner(self.policy, targets, draws)
        inputs = self.standard.after(augmented, draw)
        losses, wrong = [], []
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
            wrong.append(task.wrong(outputs.detach(), part_given))
        if self.clip is not None:
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.clip)
        self.optimizer.step()
        self.optimizer.zero_grad()  # whose memory outer steps may use
        task.stepped(given)
        return Trained(cropped, targets, draw, torch.stack(losses).sum(), torch.stack(wrong).sum())


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
        random: Sequence[OwnRandomness],
        say: Callable[[str], None],
        memory: SharedMemory | None = None,
    ) -> None:
        self.recorder = Recorder(self._run, "training steps", random, say, memory)
        self.step = step

    def __call__(self, images: Tensor, targets: Tensor, augment: bool) -> Trained:
        """Train on a batch, through the policy where `augment`."""
        return self.recorder(augment, (images, targets))

    def _run(self, augment: bool, batch: tuple[Tensor, ...]) -> Trained:
        images, targets = batch
        return self.step(images, targets, augment)


def cropped_batch(
    task: Task, standard: Standard, images: Tensor, targets: Tensor, place: Place
) -> tuple[StandardDraw, Tensor, Tensor]:
    """Images and targets before the policy, and what was drawn for the images."""
    draw, cropped = crop_and_flip(standard, images, place)
    return draw, cropped, task.cropped(standard, targets, draw, lambda: crop_and_flip(standard, images, place)[1])


def crop_and_flip(standard: Standard, images: Tensor, place: Place | None = None) -> tuple[StandardDraw, Tensor]:
    """What comes before the policy. Crops that are not resized are taken about the middle of what is stored."""
    if standard.scale is None:
        images = standard.centre(images)
    draw = drawn_standard(standard, images, Place.alone(len(images)) if place is None else place)
    return draw, standard.before(images, draw)
