"""The inner step: crop and flip, the policy, forward, backward, the optimizer; on a GPU as one CUDA graph."""

import dataclasses
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from madao.hypergrad import Place
from madao.policy import AugmentationPolicy, Standard, StandardDraw
from madao.policy.randomness import OwnRandomness
from madao.training.drawing import drawn, drawn_standard
from madao.training.graph import Recorder, SharedMemory


@dataclasses.dataclass(frozen=True)
class Trained:
    """What one step leaves behind. In a graph these are the same tensors at every step, overwritten by the next.

    Attributes:
        cropped: The batch before the policy.
        labels: Its labels.
        draw: What standard augmentation did to it.
        loss: Its mean loss; of several processes one's own part of it.
        wrong: How many of its images were misclassified.
    """

    cropped: Tensor
    labels: Tensor
    draw: StandardDraw
    loss: Tensor
    wrong: Tensor


class InnerStep:
    """One step of the weights.

    Args:
        model: What is trained, called as `model(inputs)`.
        loss: `loss(outputs, labels)`.
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
        loss: Callable[[Tensor, Tensor], Tensor],
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
        self.model, self.loss, self.backward, self.optimizer = model, loss, backward, optimizer
        self.standard, self.policy, self.accumulate, self.clip = standard, policy, accumulate, clip

    def __call__(self, images: Tensor, labels: Tensor, augment: bool) -> Trained:
        """Train on a batch, through the policy where `augment`."""
        place = Place.alone(len(images)) if self.place is None else self.place
        draw, cropped = crop_and_flip(self.standard, images, place)
        augmented = cropped
        if augment and self.policy is not None:
            augmented = self.policy.apply(cropped, drawn(self.policy, cropped, labels, place))
        inputs = self.standard.after(augmented, draw)
        losses, wrong = [], []
        self.optimizer.zero_grad()
        parts = inputs.tensor_split(self.accumulate), labels.tensor_split(self.accumulate)
        for part_inputs, part_labels in zip(*parts, strict=True):
            if not len(part_labels) and self.world == 1:
                continue  # of a batch of which images could not be read
            outputs = self.model(part_inputs)
            loss = self.loss(outputs, part_labels) * (len(part_labels) / place.total)
            self.backward(loss * self.world)  # of which the model takes the mean over processes
            losses.append(loss.detach())
            wrong.append((outputs.detach().argmax(1) != part_labels).sum())
        if self.clip is not None:
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.clip)
        self.optimizer.step()
        return Trained(cropped, labels, draw, torch.stack(losses).sum(), torch.stack(wrong).sum())


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

    def __call__(self, images: Tensor, labels: Tensor, augment: bool) -> Trained:
        """Train on a batch, through the policy where `augment`."""
        return self.recorder(augment, (images, labels))

    def _run(self, augment: bool, batch: tuple[Tensor, ...]) -> Trained:
        images, labels = batch
        return self.step(images, labels, augment)


def crop_and_flip(standard: Standard, images: Tensor, place: Place | None = None) -> tuple[StandardDraw, Tensor]:
    """What comes before the policy. Crops that are not resized are taken about the middle of what is stored."""
    if standard.scale is None:
        images = standard.centre(images)
    draw = drawn_standard(standard, images, Place.alone(len(images)) if place is None else place)
    return draw, standard.before(images, draw)
