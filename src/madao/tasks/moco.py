"""Momentum contrast (He et al., 2019): views of one image attract each other, and repel views of other images."""

import contextlib
import copy
from collections.abc import Callable
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from madao.distributed.group import ProcessGroup
from madao.policy import AugmentationPolicy, BaseAugmentation, BaseDraw
from madao.policy.base_augmentation import normalise
from madao.tasks.base import Draws, Task
from madao.tasks.knn import KNN

_NEVER = -1e4
"""A logit with no weight in a softmax."""


class MoCo(Task):
    """Momentum contrast: the contrastive loss of a query, with the key of the same image and a queue of other keys.

        ℓ = −log( exp(q·k₊/T) / (exp(q·k₊/T) + Σ_i exp(q·k_i/T)) ),   ‖q‖ = ‖k‖ = 1

    The trained encoder, a module with a method `features`, computes queries. A slow copy of it computes keys: θ_k ← m
    θ_k + (1 − m) θ_q after each step, m the `momentum`. Each view has its own crop and its own draw of the policy. The
    outer loss is the same loss for two crops of validation images, without the policy.

    In outer steps, keys and queue do not depend on the weights, so the implicit gradient goes through the query encoder
    only. The policy is differentiated through both views. Keys are computed in training mode if `training`. Labels are
    used only for the error of k-nearest `neighbours`.

    With BatchNorm, a model could match a query to its key by their common batch statistics. Therefore keys are computed
    in another order than queries. Of several processes, process r computes the keys r, r + world, … of the whole batch.
    With `SplitBatchNorm`, the order of keys is transposed. The order of a batch is random in any case.
    """

    name = "moco"
    metric_name = "k-NN error"
    train_metric_name = "contrastive error"
    views = 2
    targets_follow_policy = True

    def __init__(
        self,
        encoder: nn.Module,
        dimensions: int,
        base: BaseAugmentation,
        classes: int,
        *,
        queue: int = 65_536,
        momentum: float = 0.999,
        temperature: float = 0.07,
        neighbours: int = 200,
        splits: int = 1,
        training: bool = False,
        autocast: torch.dtype | None = None,
        group: ProcessGroup | None = None,
        seed: int = 0,
    ) -> None:
        self.encoder, self.base, self.classes, self.neighbours = encoder, base, classes, neighbours
        self.momentum, self.temperature, self.splits = momentum, temperature, splits
        self.training, self.autocast, self.group = training, autocast, group or ProcessGroup()
        self.key = copy.deepcopy(encoder).requires_grad_(False).train()
        like = next(encoder.parameters())
        start = torch.randn(queue, dimensions, generator=torch.Generator().manual_seed(seed))
        self.queue = F.normalize(start, dim=1).to(like.device, like.dtype)
        self._step: Callable[[Tensor], Tensor] = self.key
        self.place = torch.zeros((), dtype=torch.int64, device=like.device)  # position of the oldest key
        self.newest = torch.zeros(queue, dtype=torch.bool, device=like.device)  # marks the keys of the last batch

    def compile(self) -> None:
        """Compile the key encoder for training steps."""
        self._step = torch.compile(self.key, dynamic=False)

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the contrastive loss of each query, of any norm. Targets are their keys, of norm 1."""
        logits = self._logits(outputs, targets)
        return logits.logsumexp(1) - logits[:, 0]

    def outer_losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the losses without the newest keys of the queue, which come from the batch itself."""
        logits = self._logits(outputs, targets)
        others = logits[:, 1:].masked_fill(self.newest, _NEVER)
        return torch.cat([logits[:, :1], others], 1).logsumexp(1) - logits[:, 0]

    def num_errors(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return how many queries are at least as similar to a key of the queue as to their own key."""
        logits = self._logits(outputs, targets)
        return (logits[:, 1:].amax(1) >= logits[:, 0]).sum()

    def measure(self) -> KNN:
        """Return a metric of the k-nearest-neighbour error."""
        return KNN(self.classes, self.neighbours)

    def cropped(
        self, base: BaseAugmentation, targets: Tensor, draw: BaseDraw, crop_again: Callable[[], Tensor]
    ) -> Tensor:
        """Return the key views: another crop of the same images."""
        return crop_again()

    @torch.no_grad()
    def inner(self, policy: AugmentationPolicy | None, targets: Tensor, draws: Draws) -> Tensor:
        """Return the keys of key views, under the second draw. It updates the key encoder's statistics."""
        views = targets if policy is None or draws is None else policy.augment(targets, draws[1])
        return self._encode(views, "step") if self.group.world == 1 else self._encode_shuffled(views)

    def soft_targets(self, policy: AugmentationPolicy, targets: Tensor, draws: Draws) -> Tensor:
        """Return the keys of key views, with a gradient to the policy."""
        views = normalise(targets)
        views = views if draws is None else policy.augment(views, draws[1])
        return self._encode(views, "train" if self.training else "eval")

    @torch.no_grad()
    def outer(
        self, base: BaseAugmentation, images: Tensor, targets: Tensor, crop: Callable[[], Tensor]
    ) -> tuple[Tensor, Tensor]:
        """Return a random crop of each image, and the key of another crop."""
        queries = crop()
        return queries, self._encode(crop(), "eval")

    @torch.no_grad()
    def after_step(self, targets: Tensor) -> None:
        """Update the key encoder, and replace the oldest keys of the queue. The host does not wait for the device."""
        pairs = zip(self.key.parameters(), self.encoder.parameters(), strict=True)
        keys, queries = (list(tensors) for tensors in zip(*pairs, strict=True))
        torch._foreach_lerp_(keys, queries, 1 - self.momentum)
        newest = self.group.all_gather(targets)
        index = (self.place + torch.arange(len(newest), device=newest.device)) % len(self.queue)
        self.queue.index_copy_(0, index, newest.to(self.queue.dtype))
        self.newest.zero_().index_fill_(0, index, True)
        self.group.broadcast_(self.key.buffers())  # each process has seen other images
        self.place.add_(len(newest)).remainder_(len(self.queue))

    def state_dict(self) -> dict[str, Any]:
        """Return the key encoder and the queue."""
        return {"key": self.key.state_dict(), "queue": self.queue, "place": self.place, "newest": self.newest}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a saved state in place, since CUDA graphs read these tensors."""
        self.key.load_state_dict(state["key"])
        self.queue.copy_(state["queue"])
        self.place.copy_(state["place"])
        self.newest.copy_(state["newest"])

    def _logits(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return similarities with the own key and the queue, divided by the temperature: `[B, 1 + queue]`."""
        queries = F.normalize(outputs, dim=1)
        own = (queries * targets.to(queries.dtype)).sum(1, keepdim=True)
        return torch.cat([own, queries @ self.queue.to(queries.dtype).T], 1) / self.temperature

    def _encode(self, views: Tensor, mode: Literal["step", "train", "eval"]) -> Tensor:
        """Return the keys of views, of norm 1. Only the mode "step" updates the key encoder's statistics."""
        inputs, training = self.base.normalise(views), mode != "eval"
        half = self.autocast is not None
        context = torch.autocast(inputs.device.type, dtype=self.autocast) if half else contextlib.nullcontext()
        order = self._transposed(len(inputs), inputs.device) if self.splits > 1 and training else None
        inputs = inputs if order is None else inputs[order]
        self.key.train(training)
        with context:
            if mode == "step":
                keys = self._step(inputs)
            else:
                buffers = {name: buffer.clone() for name, buffer in self.key.named_buffers()}
                keys = torch.func.functional_call(self.key, buffers, (inputs,))
        keys = F.normalize(keys.float() if half else keys, dim=1)
        return keys if order is None else torch.empty_like(keys).index_copy(0, order, keys)

    def _transposed(self, count: int, device: torch.device) -> Tensor:
        """Return an order in which each part of a split batch has images of all parts."""
        return torch.arange(count, device=device).reshape(self.splits, -1).T.reshape(-1)

    def _encode_shuffled(self, views: Tensor) -> Tensor:
        """Return the keys of uint8 views. Each process encodes views of all processes."""
        rank, world = self.group.rank, self.group.world
        (place,) = self.group.places([len(views)], views.device)
        whole = self.group.all_gather(views, place)
        own = self._encode(whole[rank::world], "step")
        keys = own.new_zeros(len(whole), own.shape[1])
        keys[rank::world] = own
        (keys,) = self.group.all_reduce_sum((keys,))
        return keys[place.start : place.stop]
