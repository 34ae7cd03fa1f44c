"""What any trainer needs to learn a policy: augment a training batch, and act after an optimizer step."""

import inspect
import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from madao.integrations.entries import Key, entry, replaced
from madao.integrations.validation import outer_batches
from madao.policy import Policy
from madao.training import OuterStep, PolicyOptimizer


class PolicyLearner:
    """A `PolicyOptimizer` fed by somebody else's training loop.

    In this order: `start`, then for each batch `augment` and `keep`, and after each optimizer step `step`.

    Args:
        policy: What learns.
        images: Which entry of a batch the images are.
        targets: Which entry the targets are.
        train_images: How many of the newest training images an outer step draws for. By default those of the
            optimizer step before it.
        validation_images: How many validation images an outer step takes. By default a batch of the loader.
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
        self._seen: tuple[Tensor, Tensor] | None = None
        self._kept: list[tuple[Tensor, Tensor]] = []
        self._saved: dict[str, Any] | None = None

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
        self._seen, self._validation = None, None
        if self._saved is not None:
            if self._saved["outer"] is not None:
                self.outer.load_state_dict(self._saved["outer"])
            self._kept = [(images.to(device), targets.to(device)) for images, targets in self._saved["kept"]]
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
        self._seen = images, targets
        return replaced(batch, self.images, self.policy(images, targets))

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
            done = outer.updates + outer.skipped
            self._validation = outer_batches(validation(), self.validation_images, outer.seed, done)
        batch = next(self._validation)
        images, targets = (torch.cat(tensors) for tensors in zip(*self._kept, strict=True))
        newest = slice(-(self.train_images or 0), None)
        result = outer.step((images[newest], targets[newest]), (entry(batch, self.images), entry(batch, self.targets)))
        self._forget()
        return result

    def _forget(self) -> None:
        """Drop the batches of which no image will be wanted."""
        wanted = self.train_images or 0
        while self._kept and sum(len(targets) for _, targets in self._kept[1:]) >= wanted:
            del self._kept[0]

    def log(self, step: OuterStep) -> dict[str, float]:
        """What is worth a curve: how often each operation is selected, and the health of the gradient."""
        selection = self.policy.selection.detach().mean(0).tolist()
        values = {operation.name: share for operation, share in zip(self.policy.operations, selection, strict=True)}
        values |= {"gradient_norm": step.stats.grad_norm, "validation_loss": step.stats.outer_loss}
        values |= {f"signal_{kind}": ratio for kind, ratio in step.signal.items()}
        return {f"policy/{name}": value for name, value in values.items() if math.isfinite(value)}

    def state_dict(self) -> dict[str, Any]:
        """Policy with its random state, optimizer, and the images of `train_images`: all that the future needs."""
        if self._saved is not None:
            return self._saved
        outer = None if self.outer is None else self.outer.state_dict()
        return {"policy": self.policy.state_dict(), "outer": outer, "kept": [list(batch) for batch in self._kept]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a saved state: the policy at once, the rest at the next `start`."""
        self.policy.load_state_dict(state["policy"])
        self._saved = state
