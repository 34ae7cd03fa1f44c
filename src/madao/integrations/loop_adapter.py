"""The part that all integrations share: augmented batches, and outer steps between optimizer steps."""

import dataclasses
import inspect
import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from madao.distributed.sampling import sample_shard, shard_of
from madao.integrations.batch_access import Key, entry, replaced
from madao.integrations.validation import outer_batches
from madao.outer import ComputeOptions, OuterStep, PolicyOptimizer
from madao.policy import ImagePolicy, Policy


class LoopAdapter:
    """A `PolicyOptimizer` that the training loop of another library feeds.

    Call `start` first, then `augment` and `keep` for each batch, and `step` after each optimizer step. Several
    processes make the same calls, each with its own images. Every process draws for the images of all processes
    and uses the draws for its own, so that all processes have the same policy.

    Args:
        policy: The policy that learns.
        images: The index, key or attribute of the images in a batch.
        targets: The index, key or attribute of the targets in a batch.
        train_images: How many of the newest training images of all processes an outer step draws for. By default as the
            budget allows; with `every` among the settings, those of the last optimizer step.
        validation_images: How many validation images of all processes an outer step uses. By default as the budget
            allows; with `every` among the settings, a batch of the loader for each process.
        settings: Arguments of `PolicyOptimizer`.

    Example:
        >>> policy, model = madao.Policy(), nn.Sequential(nn.Flatten(), nn.Linear(192, 2))
        >>> adapter = LoopAdapter(policy, 0, 1, None, None, {"every": 1})
        >>> adapter.start(model)
        >>> batch = torch.rand(4, 3, 8, 8), torch.tensor([0, 1, 0, 1])
        >>> augmented, _ = adapter.augment(batch)  # train on these images, then:
        >>> adapter.keep()
        >>> adapter.step(lambda: [batch]).applied
        True
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
        inspect.signature(PolicyOptimizer).bind(policy, None, **settings)  # refuses unknown names early
        self.policy, self.images, self.targets = policy, images, targets
        self.settings = {"train_images": train_images, "validation_images": validation_images, **settings}
        self.outer: PolicyOptimizer | None = None
        self._validation: Iterator[Any] | None = None
        # Images, targets, and the number of images in all processes: every process drops a batch at the same time.
        self._seen: tuple[Tensor, Tensor, int] | None = None
        self._kept: list[tuple[Tensor, Tensor, int]] = []
        self._fresh = 0  # how many of these are from after the last optimizer step
        self._saved: dict[str, Any] | None = None
        self._unseen = False  # whether the policy depends on images and has not been standardised yet

    def start(self, model: nn.Module, autocast: torch.dtype | None = None, total_steps: int | None = None) -> None:
        """Prepare to learn with a model. With the model of the previous call, continue.

        Args:
            model: Maps images to outputs. It is on its device.
            autocast: The dtype of the trainer's forward passes, for outer steps unless the user has chosen another.
            total_steps: The optimizer steps of the whole training, if they are known.
        """
        device = next(model.parameters()).device
        self.policy.to(device)
        if self.outer is None or self.outer.model is not model:
            compute = self.settings.get("compute") or ComputeOptions()
            if compute.autocast is None:
                compute = dataclasses.replace(compute, autocast=autocast)
            chosen = {"total_steps": total_steps, **self.settings, "compute": compute}
            self.outer = PolicyOptimizer(self.policy, model, **chosen)
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

    @property
    def asks_for_total_steps(self) -> bool:
        """Whether a plan of outer steps depends on the number of optimizer steps of the training."""
        return self.settings.get("every") is None and self.settings.get("total_steps") is None

    def stop(self) -> None:
        """Release the validation loader and its workers."""
        self._validation = None

    def augment(self, batch: Any) -> Any:
        """Return the batch with augmented images, and remember the original ones."""
        images = entry(batch, self.images)
        if images.dtype == torch.uint8 and self.settings.get("transform") is None:
            raise TypeError(
                "these images are uint8, but outer steps give the model floats in [0, 1] and do not know how this "
                "training converts them; load images as floats in [0, 1], or give transform=… from such floats to the "
                "input of the model"
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
        """Add the last augmented batch to those of the next optimizer step."""
        if self._seen is not None:
            self._kept.append(self._seen)
            self._seen = None
            self._fresh += 1

    def step(self, validation: Callable[[], Iterable[Any]]) -> OuterStep | None:
        """Count an optimizer step, and update the policy if an outer step is due.

        Args:
            validation: Returns the validation loader of the trainer. Called when the loader is first needed.
        """
        outer = self.outer
        assert outer is not None, "start comes first"
        if self._fresh:
            newest_images, count = self._kept[-1][0], sum(total for *_, total in self._kept[-self._fresh :])
            outer.plan(newest_images, count)
            self._fresh = 0
        if outer.schedule is None:  # there has been no batch yet
            return None
        if not (outer.tick() and self._kept):
            self._forget()
            return None
        if self._validation is None:
            assert outer.schedule is not None
            done, place = outer.updates + outer.skipped, (outer.ranks.rank, outer.ranks.world)
            size, asked = outer.schedule.validation_images, self.settings["validation_images"] is not None
            self._validation = outer_batches(validation(), size, outer.seed, done, *place, required=asked)
        batch = next(self._validation)
        outer.ranks.broadcast_(outer.model.buffers())  # data-parallel models do so only before the next step
        images, targets = torch.cat([kept[0] for kept in self._kept]), torch.cat([kept[1] for kept in self._kept])
        share = math.ceil(self._train_images / outer.ranks.world)
        newest = slice(-share, None)
        result = outer.update(
            (images[newest], targets[newest]), (entry(batch, self.images), entry(batch, self.targets))
        )
        self._forget()
        return result

    def _forget(self) -> None:
        """Drop the batches that no outer step will need."""
        while self._kept and sum(total for *_, total in self._kept[1:]) >= self._train_images:
            del self._kept[0]

    @property
    def _train_images(self) -> int:
        """How many training images of all processes an outer step draws for; 0 for those of the last optimizer step."""
        schedule = None if self.outer is None else self.outer.schedule
        return (self.settings["train_images"] if schedule is None else schedule.train_images) or 0

    def log(self, step: OuterStep) -> dict[str, float]:
        """Return the numbers to plot: the selection probability of each operation, and the health of the gradient."""
        selection = self.policy.selection.detach().mean(0).tolist()
        values = {operation.name: share for operation, share in zip(self.policy.operations, selection, strict=True)}
        values |= {"gradient_norm": step.stats.grad_norm, "validation_loss": step.stats.outer_loss}
        values |= {f"signal_{kind}": ratio for kind, ratio in step.signal.items()}
        return {f"policy/{name}": value for name, value in values.items() if math.isfinite(value)}

    def state_dict(self) -> dict[str, Any]:
        """Return the states of policy and optimizer, and the stored training images. Every process must call this."""
        if self._saved is not None:
            return self._saved
        if self.outer is None:
            return {"policy": self.policy.state_dict(), "outer": None, "kept": []}
        kept = [[self.outer.ranks.all_gather(tensor) for tensor in batch[:2]] for batch in self._kept]
        return {"policy": self.policy.state_dict(), "outer": self.outer.state_dict(), "kept": kept}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the policy now, and the rest at the next `start`."""
        self.policy.load_state_dict(state["policy"])
        self._saved = state
