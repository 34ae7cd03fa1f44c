"""Momentum contrast: two views of an image are alike, those of different images are not (He et al., 2019)."""

import contextlib
import copy
from collections.abc import Callable, Iterable
from typing import Any, Literal, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from madao.policy import AugmentationPolicy, BaseAugmentation, BaseDraw
from madao.policy.base_augmentation import normalise
from madao.tasks.base import Draws, Task
from madao.tasks.knn import KNN

_NEVER = -1e4
"""A logit that counts for nothing."""


class Processes(Protocol):
    """The processes that share a batch."""

    @property
    def rank(self) -> int:
        """Of this one."""

    @property
    def world(self) -> int:
        """How many there are."""

    def all_gather(self, values: Tensor) -> Tensor:
        """Those of all processes, in their order."""

    def all_reduce_sum(self, vector: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """The sum over all processes."""

    def broadcast_(self, tensors: Iterable[Tensor]) -> None:
        """Overwrite tensors by those of the first process."""


class MoCo(Task):
    """The contrastive loss of a query view against the key view of the same image and a queue of keys of others.

        ℓ = −log( exp(q·k₊/T) / (exp(q·k₊/T) + Σ_i exp(q·k_i/T)) ),   ‖q‖ = ‖k‖ = 1

    Queries come from the model that is trained, keys from a slow copy of it: θ_k ← m θ_k + (1 − m) θ_q after each step.
    Each view has its own crop and its own draw of the policy. The outer loss is the same of validation images, cropped
    but without the policy.

    In outer steps keys and queue are constants as far as weights go, so that the implicit gradient goes through the
    query encoder alone; the policy is differentiated through both views. The targets that come with the data count for
    nothing but the k-nearest-neighbour error.

    BatchNorm could tell a query by the statistics it shares with its key. So keys are computed in another order: with
    several processes, key r, r + world, … are this one's, which has a run of queries; where a process splits its
    batches (`SplitBatchNorm`), keys are transposed likewise. The batch's order is random already.

    Args:
        encoder: What is trained: from images to projections, with a method `features`. On its device.
        dimensions: Of the projections.
        standard: How images are cropped and normalised.
        classes: Of the data, for the measure.
        queue: Keys to remember.
        momentum: m.
        temperature: T.
        neighbours: k of the measure.
        splits: Parts of a batch with statistics of their own.
        training: Whether keys of outer steps are computed in training mode.
        autocast: Half-precision dtype of the key encoder's passes, if any.
        processes: Those that share a batch. By default there is one.
        seed: Which keys the queue starts with.
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
        standard: BaseAugmentation,
        classes: int,
        queue: int = 65_536,
        momentum: float = 0.999,
        temperature: float = 0.07,
        neighbours: int = 200,
        splits: int = 1,
        training: bool = False,
        autocast: torch.dtype | None = None,
        processes: Processes | None = None,
        seed: int = 0,
    ) -> None:
        self.encoder, self.standard, self.classes, self.neighbours = encoder, standard, classes, neighbours
        self.momentum, self.temperature, self.splits = momentum, temperature, splits
        self.training, self.autocast, self.processes = training, autocast, processes
        self.key = copy.deepcopy(encoder).requires_grad_(False).train()
        like = next(encoder.parameters())
        start = torch.randn(queue, dimensions, generator=torch.Generator().manual_seed(seed))
        self.queue = F.normalize(start, dim=1).to(like.device, like.dtype)
        self._step: Callable[[Tensor], Tensor] = self.key
        self.place = torch.zeros((), dtype=torch.int64, device=like.device)  # of the oldest key
        self.newest = torch.zeros(queue, dtype=torch.bool, device=like.device)  # which keys are the last batch's

    def compile(self) -> None:
        """Compile the pass of the key encoder in training steps."""
        self._step = torch.compile(self.key, dynamic=False)

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The contrastive loss of each query.

        Args:
            outputs: Queries, `[B, dimensions]`, of any length.
            targets: Their keys, of length 1.
        """
        logits = self._logits(outputs, targets)
        return logits.logsumexp(1) - logits[:, 0]

    def outer_losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The same without the newest keys: those of the batch itself, which would count against each query."""
        logits = self._logits(outputs, targets)
        others = logits[:, 1:].masked_fill(self.newest, _NEVER)
        return torch.cat([logits[:, :1], others], 1).logsumexp(1) - logits[:, 0]

    def num_errors(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """How many queries are as near or nearer to another key than to their own."""
        logits = self._logits(outputs, targets)
        return (logits[:, 1:].amax(1) >= logits[:, 0]).sum()

    def measure(self) -> KNN:
        """How well the nearest training images tell the class."""
        return KNN(self.classes, self.neighbours)

    def cropped(
        self, standard: BaseAugmentation, targets: Tensor, draw: BaseDraw, again: Callable[[], Tensor]
    ) -> Tensor:
        """The key views: another crop of the same images."""
        return again()

    @torch.no_grad()
    def inner(self, policy: AugmentationPolicy | None, targets: Tensor, draws: Draws) -> Tensor:
        """The keys of key views, by another draw than the queries'. The key encoder's statistics go on."""
        views = targets if policy is None or draws is None else policy.augment(targets, draws[1])
        several = self.processes is not None and self.processes.world > 1
        return self._shuffled(views) if several else self._encoded(views, "step")

    def soft_targets(self, policy: AugmentationPolicy, targets: Tensor, draws: Draws) -> Tensor:
        """The keys of key views, with a gradient to the policy."""
        views = normalise(targets)
        views = views if draws is None else policy.augment(views, draws[1])
        return self._encoded(views, "train" if self.training else "eval")

    @torch.no_grad()
    def outer(
        self, standard: BaseAugmentation, images: Tensor, targets: Tensor, crop: Callable[[], Tensor]
    ) -> tuple[Tensor, Tensor]:
        """A crop of each image, and the key of another."""
        queries = crop()
        return queries, self._encoded(crop(), "eval")

    @torch.no_grad()
    def after_step(self, targets: Tensor) -> None:
        """The key encoder follows, and the keys take the place of the oldest in the queue. The host does not wait."""
        pairs = zip(self.key.parameters(), self.encoder.parameters(), strict=True)
        keys, queries = (list(tensors) for tensors in zip(*pairs, strict=True))
        torch._foreach_lerp_(keys, queries, 1 - self.momentum)
        newest = targets if self.processes is None else self.processes.all_gather(targets)
        index = (self.place + torch.arange(len(newest), device=newest.device)) % len(self.queue)
        self.queue.index_copy_(0, index, newest.to(self.queue.dtype))
        self.newest.zero_().index_fill_(0, index, True)
        if self.processes is not None:
            self.processes.broadcast_(self.key.buffers())  # each has seen other images
        self.place.add_(len(newest)).remainder_(len(self.queue))

    def state_dict(self) -> dict[str, Any]:
        """The key encoder and the queue."""
        return {"key": self.key.state_dict(), "queue": self.queue, "place": self.place, "newest": self.newest}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a saved state, in place: graphs read these tensors."""
        self.key.load_state_dict(state["key"])
        self.queue.copy_(state["queue"])
        self.place.copy_(state["place"])
        self.newest.copy_(state["newest"])

    def _logits(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Similarities by temperature, `[B, 1 + queue]`: the key's own first."""
        queries = F.normalize(outputs, dim=1)
        own = (queries * targets.to(queries.dtype)).sum(1, keepdim=True)
        return torch.cat([own, queries @ self.queue.to(queries.dtype).T], 1) / self.temperature

    def _encoded(self, views: Tensor, mode: Literal["step", "train", "eval"]) -> Tensor:
        """The keys of views, of length 1; only of a step the key encoder's statistics go on."""
        inputs, training = self.standard.normalise(views), mode != "eval"
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
        """An order in which each part of a split batch has images of all parts."""
        return torch.arange(count, device=device).reshape(self.splits, -1).T.reshape(-1)

    def _shuffled(self, views: Tensor) -> Tensor:
        """The keys of uint8 views, each computed with those of other processes' queries."""
        assert self.processes is not None
        rank, world = self.processes.rank, self.processes.world
        # One behind the other where each process has its own: as many as they are, in their order.
        counts = torch.zeros(world, dtype=torch.int64, device=views.device)
        counts[rank] = len(views)
        (counts,) = self.processes.all_reduce_sum((counts,))
        start = int(counts[:rank].sum())
        whole = self.processes.all_gather(views)
        own = self._encoded(whole[rank::world], "step")
        keys = own.new_zeros(len(whole), own.shape[1])
        keys[rank::world] = own
        (keys,) = self.processes.all_reduce_sum((keys,))
        return keys[start : start + len(views)]
