"""What any trainer needs to learn a policy: augment a training batch, and act after an optimizer step."""

import inspect
import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from madao.distributed.sampling import sample_shard, shard_of
from madao.integrations.batch_access import Key, entry, replaced
from madao.integrations.validation import outer_batches
from madao.outer import OuterStep, PolicyOptimizer
from madao.policy import ImagePolicy, Policy


class LoopAdapter:
    """A `PolicyOptimizer` fed by somebody else's training loop.

    In this order: `start`, then for each batch `augment` and `keep`, and after each optimizer step `step`. Several
    processes, each with images of its own, make the same calls: all draw for all images, and take what is theirs, so
    that every one of them has the same policy.

    Args:
        policy: What learns.
        images: Which entry of a batch the images are.
        targets: Which entry the targets are.
        train_images: How many of the newest training images, of all processes, an outer step draws for. By default
            those of the optimizer step before it.
        validation_images: How many validation images an outer step takes, of all processes. By default a batch of the
            loader for each.
        settings: Of `PolicyOptimizer`.
    """

    def __init__(
        self,
        policy: Policy,
        images: Key,
        targets: Key,
        train_images: int | None,
        validation_images: int | None,
        settings: dict[str, Any],
    ) -> None:
        for name, number in (("train_images", train_images), ("validation_images", validation_images)):
            if number is not None and number < 1:
                raise ValueError(f"{name} must be at least 1, got {number!r}")
        inspect.signature(PolicyOptimizer).bind(policy, None, **settings)  # unknown names are refused here and now
        self.policy, self.images, self.targets = policy, images, targets
        self.train_images, self.validation_images, self.settings = train_images, validation_images, settings
        self.outer: PolicyOptimizer | None = None
        self._validation: Iterator[Any] | None = None
        # Images, targets, and how many of them all processes have together: what is forgotten, all forget at once.
        self._seen: tuple[Tensor, Tensor, int] | None = None
        self._kept: list[tuple[Tensor, Tensor, int]] = []
        self._saved: dict[str, Any] | None = None
        self._unseen = False  # whether the policy looks at images and has seen none yet

    def start(self, model: nn.Module, **defaults: Any) -> None:
        """Get ready to learn with a model; with the one of before, go on.

        Args:
            model: From images to outputs, on its device.
            **defaults: Settings that give way to the user's own.
        """
        device = next(model.parameters()).device
        self.policy.to(device)
        if self.outer is None or self.outer.model is not model:
            self.outer = PolicyOptimizer(self.policy, model, **{**defaults, **self.settings})
            self._kept = []
        ranks = self.outer.ranks
        ranks.broadcast_([*self.policy.parameters(), *self.policy.buffers()])
        self.policy.set_extra_state(ranks.broadcast_object(self.policy.get_extra_state()))
        self._seen, self._validation = None, None
        self._unseen = isinstance(self.policy, ImagePolicy) and not bool(self.policy.get_buffer("standardised"))
        if self._saved is not None:
            if self._saved["outer"] is not None:
                self.outer.load_state_dict(self._saved["outer"])
            places = [shard_of(len(targets), ranks) for _, targets in self._saved["kept"]]
            self._kept = [
                (images[place.start : place.stop].to(device), targets[place.start : place.stop].to(device), place.total)
                for (images, targets), place in zip(self._saved["kept"], places, strict=True)
            ]
            self._saved = None

    def stop(self) -> None:
        """Let go of the validation loader and its workers."""
        self._validation = None

    def augment(self, batch: Any) -> Any:
        """The batch with augmented images; those it came with are remembered."""
        images = entry(batch, self.images)
        if images.dtype == torch.uint8 and self.settings.get("transform") is None:
            raise TypeError(
                "these images are uint8, but outer steps give the model floats in [0, 1], and what turns the one into "
                "the other in this training is not known; load images as floats in [0, 1], or say with transform=… "
                "what makes of these floats what the model takes"
            )
        targets = entry(batch, self.targets)
        assert self.outer is not None, "start comes first"
        if self._unseen and isinstance(self.policy, ImagePolicy):
            if len(images) > 1:
                self.policy.standardise(images)
            self.outer.ranks.broadcast_(self.policy.buffers())
            self._unseen = not bool(self.policy.get_buffer("standardised"))
        (place,) = self.outer.ranks.places([len(images)], images.device)
        self._seen = images, targets, place.total
        augmented = self.policy.augment(images, sample_shard(self.policy, images, targets, place))
        return replaced(batch, self.images, augmented)

    def keep(self) -> None:
        """Count the batch that was last augmented among those of the coming optimizer step."""
        if self._seen is not None:
            self._kept.append(self._seen)
            self._seen = None

    def step(self, validation: Callable[[], Iterable[Any]]) -> OuterStep | None:
        """After an optimizer step: update the policy if it is time to.

        Args:
            validation: Gives the trainer's validation loader, when it is first needed.
        """
        outer = self.outer
        assert outer is not None, "start comes first"
        if not (outer.due() and self._kept):
            self._forget()
            return outer.step((), ())  # which only counts
        if self._validation is None:
            done, place = outer.updates + outer.skipped, (outer.ranks.rank, outer.ranks.world)
            self._validation = outer_batches(validation(), self.validation_images, outer.seed, done, *place)
        batch = next(self._validation)
        outer.ranks.broadcast_(outer.model.buffers())  # as data-parallel models do themselves, before the next step
        images, targets = torch.cat([kept[0] for kept in self._kept]), torch.cat([kept[1] for kept in self._kept])
        share = math.ceil((self.train_images or 0) / outer.ranks.world)
        newest = slice(-share, None)
        result = outer.step((images[newest], targets[newest]), (entry(batch, self.images), entry(batch, self.targets)))
        self._forget()
        return result

    def _forget(self) -> None:
        """Drop the batches of which no image will be wanted."""
        while self._kept and sum(total for *_, total in self._kept[1:]) >= (self.train_images or 0):
            del self._kept[0]

    def log(self, step: OuterStep) -> dict[str, float]:
        """What is worth a curve: how often each operation is selected, and the health of the gradient."""
        selection = self.policy.selection.detach().mean(0).tolist()
        values = {operation.name: share for operation, share in zip(self.policy.operations, selection, strict=True)}
        values |= {"gradient_norm": step.stats.grad_norm, "validation_loss": step.stats.outer_loss}
        values |= {f"signal_{kind}": ratio for kind, ratio in step.signal.items()}
        return {f"policy/{name}": value for name, value in values.items() if math.isfinite(value)}

    def state_dict(self) -> dict[str, Any]:
        """Policy with its random state, optimizer, and the images of `train_images`: all that the future needs.

        Every process has to ask for it.
        """
        if self._saved is not None:
            return self._saved
        if self.outer is None:
            return {"policy": self.policy.state_dict(), "outer": None, "kept": []}
        kept = [[self.outer.ranks.all_gather(tensor) for tensor in batch[:2]] for batch in self._kept]
        return {"policy": self.policy.state_dict(), "outer": self.outer.state_dict(), "kept": kept}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a saved state: the policy at once, the rest at the next `start`."""
        self.policy.load_state_dict(state["policy"])
        self._saved = state
