"""The inner step: crop and flip, the policy, forward, backward, the optimizer; on a GPU as one CUDA graph."""

import dataclasses
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from madao.policy import AugmentationPolicy, Standard, StandardDraw
from madao.policy.randomness import OwnRandomness

_EAGER_STEPS = 3
"""Steps before a graph is recorded: the optimizer's state and the kernels' plans come into being in them."""


@dataclasses.dataclass(frozen=True)
class Trained:
    """What one step leaves behind. In a graph these are the same tensors at every step, overwritten by the next.

    Attributes:
        cropped: The batch before the policy.
        labels: Its labels.
        draw: What standard augmentation did to it.
        loss: Its mean loss.
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
    ) -> None:
        self.model, self.loss, self.backward, self.optimizer = model, loss, backward, optimizer
        self.standard, self.policy, self.accumulate, self.clip = standard, policy, accumulate, clip

    def __call__(self, images: Tensor, labels: Tensor, augment: bool) -> Trained:
        """Train on a batch, through the policy where `augment`."""
        draw, cropped = crop_and_flip(self.standard, images)
        augmented = self.policy(cropped) if augment and self.policy is not None else cropped
        inputs = self.standard.after(augmented, draw)
        size = -(-len(labels) // self.accumulate)
        losses, wrong = [], []
        self.optimizer.zero_grad()
        for part_inputs, part_labels in zip(inputs.split(size), labels.split(size), strict=True):
            outputs = self.model(part_inputs)
            loss = self.loss(outputs, part_labels) * (len(part_labels) / len(labels))
            self.backward(loss)
            losses.append(loss.detach())
            wrong.append((outputs.detach().argmax(1) != part_labels).sum())
        if self.clip is not None:
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.clip)
        self.optimizer.step()
        return Trained(cropped, labels, draw, torch.stack(losses).sum(), torch.stack(wrong).sum())


class GraphedStep:
    """`InnerStep` recorded once and replayed: one launch a step, where the step is bound by its launches.

    A graph needs static shapes and a host that never waits. Batches of another shape run without it, and so does
    everything from the moment on that recording fails, which is said in one line.

    Args:
        step: What is recorded.
        random: Modules whose random numbers the step draws.
        say: Where the one line goes.
    """

    def __init__(self, step: InnerStep, random: Sequence[OwnRandomness], say: Callable[[str], None]) -> None:
        self.step, self.random, self.say = step, random, say
        self.failed = False
        self._seen: dict[tuple[object, ...], int] = {}
        self._graphs: dict[tuple[object, ...], tuple[torch.cuda.CUDAGraph, Tensor, Tensor, Trained]] = {}

    def __call__(self, images: Tensor, labels: Tensor, augment: bool) -> Trained:
        """Train on a batch, through the policy where `augment`."""
        key = (augment, images.shape, images.dtype)
        if self.failed:
            return self.step(images, labels, augment)
        if key not in self._graphs:
            self._seen[key] = self._seen.get(key, 0) + 1
            if self._seen[key] <= _EAGER_STEPS:
                return self._aside(images, labels, augment)
            if not self._record(key, images, labels, augment):
                return self.step(images, labels, augment)
        graph, static_images, static_labels, trained = self._graphs[key]
        static_images.copy_(images)
        static_labels.copy_(labels)
        graph.replay()
        return trained

    def _aside(self, images: Tensor, labels: Tensor, augment: bool) -> Trained:
        """A step on a stream of its own, as what is recorded later has to have run before."""
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            trained = self.step(images, labels, augment)
        torch.cuda.current_stream().wait_stream(stream)
        return trained

    def _record(self, key: tuple[object, ...], images: Tensor, labels: Tensor, augment: bool) -> bool:
        graph = torch.cuda.CUDAGraph()
        own = [module.generator(images.device) for module in self.random]
        for generator in own:
            graph.register_generator_state(generator)
        # A recording that fails leaves generators unusable, the global one too.
        everyone = [*own, torch.cuda.default_generators[images.device.index or 0]]
        before = [generator.clone_state() for generator in everyone]
        static_images, static_labels = images.clone(), labels.clone()
        torch.cuda.synchronize()
        try:
            with torch.cuda.graph(graph):
                trained = self.step(static_images, static_labels, augment)
        except RuntimeError as error:
            self.failed = True
            for generator, state in zip(everyone, before, strict=True):
                generator.graphsafe_set_state(state)
            reason = " ".join(str(error).split())[:200]
            self.say(f"steps run without a CUDA graph, which could not be recorded: {reason}")
            return False
        self._graphs[key] = graph, static_images, static_labels, trained
        return True


def crop_and_flip(standard: Standard, images: Tensor) -> tuple[StandardDraw, Tensor]:
    """What comes before the policy. Crops that are not resized are taken about the middle of what is stored."""
    if standard.scale is None:
        images = standard.centre(images)
    draw = standard.sample(images)
    return draw, standard.before(images, draw)
