"""The interface of tasks: the loss of an example, its targets under augmentation, and the metric of a model."""

import abc
import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from torch import Tensor, nn

from madao.policy import AugmentationPolicy, BaseAugmentation, BaseDraw, Draw

Draws = Sequence[Draw] | None
"""The policy's draw for each view of the images, or None where the policy is not applied."""


@dataclasses.dataclass(frozen=True)
class EvalResult:
    """The result of evaluating a model.

    Attributes:
        loss: Mean loss of the examples.
        error: The task's error in [0, 1], see `Task.metric_name`. The best checkpoint has the lowest one.
        count: Number of examples.
        metrics: Further metrics by name.
    """

    loss: float
    error: float
    count: int
    metrics: dict[str, float] = dataclasses.field(default_factory=dict)


class Metric(abc.ABC):
    """A metric that accumulates batches. Its state is a vector of sums, which several processes can add up.

    Attributes:
        compares: Whether `compare_with` has to be called with the training images, not augmented, before `add`.
    """

    compares: ClassVar[bool] = False

    def compare_with(self, outputs: Tensor, targets: Tensor) -> None:  # noqa: B027 -- most compare with nothing
        """Take the outputs and targets of the training images, gathered from all processes."""

    def targets(self, base: BaseAugmentation, targets: Tensor) -> Tensor:
        """Return the targets of images that were cropped by `base.centre`."""
        return targets

    def outputs(self, model: nn.Module, inputs: Tensor) -> Tensor:
        """Return the outputs of the model that the metric is about."""
        outputs: Tensor = model(inputs)
        return outputs

    @abc.abstractmethod
    def add(self, outputs: Tensor, targets: Tensor) -> None:
        """Add a batch. Outputs are float32."""

    @abc.abstractmethod
    def sums(self) -> Tensor:
        """Return the accumulated state, float64 `[n]` on the CPU. Sums of several processes add up."""

    @abc.abstractmethod
    def score(self, sums: Tensor) -> EvalResult:
        """Compute the result from accumulated sums."""


class Task(abc.ABC):
    """A task: the loss that models learn from, and the metric that they are compared by.

    A batch is `(images, targets)`. Before they reach the loss, targets go through the same augmentation as their
    images: first `cropped` (base augmentation), then `inner` in training or `soft_targets` in outer steps (the policy).
    `losses` compares the result with the model's outputs. The inner problem is the mean of `losses` over augmented
    training images. The outer problem is their mean over validation images, prepared by `outer`.

    Attributes:
        name: Name of the task in configurations.
        metric_name: Name of `EvalResult.error`, the number that models are compared by.
        train_metric_name: Name of `num_errors` as a fraction of the images, which progress lines show while training.
        views: Number of draws of the policy for each image.
        targets_follow_policy: Whether targets depend on the policy's draws, so that outer steps need `soft_targets`.
    """

    name: ClassVar[str]
    metric_name: ClassVar[str] = "error"
    train_metric_name: ClassVar[str] = "error"
    views: ClassVar[int] = 1
    targets_follow_policy: ClassVar[bool] = False

    @abc.abstractmethod
    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the loss of each example, `[B]`."""

    def outer_losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return `losses` for outer steps, which see a batch again after `after_step`."""
        return self.losses(outputs, targets)

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the mean loss of a training batch."""
        return self.losses(outputs, targets).mean()

    @abc.abstractmethod
    def num_errors(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the number of wrong examples in a training batch. It may include fractions of an example."""

    @abc.abstractmethod
    def measure(self) -> Metric:
        """Return a new metric."""

    def cropped(
        self, base: BaseAugmentation, targets: Tensor, draw: BaseDraw, crop_again: Callable[[], Tensor]
    ) -> Tensor:
        """Return the targets after the base augmentation of their images, given its draw for them.

        `crop_again` returns another random crop of the images.
        """
        return targets

    def inner(self, policy: AugmentationPolicy | None, targets: Tensor, draws: Draws) -> Tensor:
        """Return the targets after the policy, in training. `targets` come from `cropped`."""
        return targets

    def soft_targets(self, policy: AugmentationPolicy, targets: Tensor, draws: Draws) -> Tensor:
        """Return the targets after the policy, in outer steps.

        They are in floating point and carry a gradient to the policy's parameters where the draws do. Only tasks with
        `targets_follow_policy` need this method. It must not change any state.
        """
        return self.inner(policy, targets, draws)

    def outer(
        self, base: BaseAugmentation, images: Tensor, targets: Tensor, crop: Callable[[], Tensor]
    ) -> tuple[Tensor, Tensor]:
        """Prepare a validation batch of uint8 images, without the policy. `crop` returns a random crop of them."""
        return base.centre(images), targets

    def compile(self) -> None:  # noqa: B027 -- most tasks compute nothing themselves
        """Compile the task's own computations in training steps with torch.compile."""

    def after_step(self, targets: Tensor) -> None:  # noqa: B027 -- most tasks have nothing to do
        """Update the task after a training step. `targets` come from `inner`."""

    def state_dict(self) -> dict[str, Any] | None:
        """Return the state that checkpoints save, or None for tasks without state."""
        return None

    def load_state_dict(self, state: dict[str, Any]) -> None:  # noqa: B027 -- most tasks have no state
        """Restore a saved state."""
