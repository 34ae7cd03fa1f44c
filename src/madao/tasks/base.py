"""What a task is: what an example loses, what moves along with its image, and how well a model does."""

import abc
import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from torch import Tensor, nn

from madao.policy import AugmentationPolicy, BaseAugmentation, BaseDraw, Draw

Draws = Sequence[Draw] | None
"""What the policy drew, once for each view of the images; None where it is not applied."""


@dataclasses.dataclass(frozen=True)
class EvalResult:
    """How well a model does on `count` examples.

    Attributes:
        loss: The mean.
        error: What the task calls its error, a part of 1: what the best checkpoint is chosen by.
        count: How many examples there were.
        metrics: What else the task measures, by name.
    """

    loss: float
    error: float
    count: int
    metrics: dict[str, float] = dataclasses.field(default_factory=dict)


class Metric(abc.ABC):
    """One measurement: takes in batch after batch. What it keeps are sums, so that processes can add theirs up.

    Attributes:
        compares: Whether it has to be shown the training images, not augmented, before any other.
    """

    compares: ClassVar[bool] = False

    def compare_with(self, outputs: Tensor, targets: Tensor) -> None:  # noqa: B027 -- most compare with nothing
        """The outputs and targets of training images, of all processes."""

    def targets(self, standard: BaseAugmentation, targets: Tensor) -> Tensor:
        """The targets of images that were cut by `standard.centre`."""
        return targets

    def outputs(self, model: nn.Module, inputs: Tensor) -> Tensor:
        """What of the model is measured."""
        outputs: Tensor = model(inputs)
        return outputs

    @abc.abstractmethod
    def add(self, outputs: Tensor, targets: Tensor) -> None:
        """Take in a batch; outputs are float32."""

    @abc.abstractmethod
    def sums(self) -> Tensor:
        """What was taken in, float64 `[n]` on the CPU: of several processes the sum of theirs is that of all."""

    @abc.abstractmethod
    def score(self, sums: Tensor) -> EvalResult:
        """The score that such sums stand for."""


class Task(abc.ABC):
    """What is learned.

    A batch is `(images, targets)`. On its way to the loss, targets go with their images: through standard crops
    (`cropped`), then through what the policy drew (`inner`, and in outer steps `along`). What comes out is what
    `losses` takes beside the model's outputs. The inner problem is the mean of `losses` over augmented training images,
    the outer one that over what `outer` makes of validation images.

    Attributes:
        name: The task's name in configurations.
        metric_name: The name of `EvalResult.error`, the number that models are compared by.
        train_metric_name: The name of `num_errors` as a part of the images, which progress lines show while training.
        views: How many times the policy draws for an image.
        moves: Whether targets depend on what the policy draws, so that `along` is asked for them.
    """

    name: ClassVar[str]
    metric_name: ClassVar[str] = "error"
    train_metric_name: ClassVar[str] = "error"
    views: ClassVar[int] = 1
    targets_follow_policy: ClassVar[bool] = False

    @abc.abstractmethod
    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The loss of each example, `[B]`."""

    def outer_losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """As `losses`, in outer steps, which come after `stepped` and look at the same batch again."""
        return self.losses(outputs, targets)

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The mean loss of training."""
        return self.losses(outputs, targets).mean()

    @abc.abstractmethod
    def num_errors(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """How many examples of a training batch are wrong, or the sum of the parts of them that are."""

    @abc.abstractmethod
    def measure(self) -> Metric:
        """A measurement that begins."""

    def cropped(
        self, standard: BaseAugmentation, targets: Tensor, draw: BaseDraw, again: Callable[[], Tensor]
    ) -> Tensor:
        """The targets of images after standard crop and flip.

        Args:
            standard: What crops and flips.
            targets: As the data has them.
            draw: What was drawn for the images.
            again: Gives another crop of the same images.
        """
        return targets

    def inner(self, policy: AugmentationPolicy | None, targets: Tensor, draws: Draws) -> Tensor:
        """The targets of training, from those that `cropped` gave."""
        return targets

    def soft_targets(self, policy: AugmentationPolicy, targets: Tensor, draws: Draws) -> Tensor:
        """As `inner`, in outer steps: floating point, with a gradient to what the draws carry one to.

        Where `moves`; else targets stay as they are. Changes nothing.
        """
        return self.inner(policy, targets, draws)

    def outer(
        self, standard: BaseAugmentation, images: Tensor, targets: Tensor, crop: Callable[[], Tensor]
    ) -> tuple[Tensor, Tensor]:
        """A validation batch, not augmented by the policy: images, and targets as `losses` takes them.

        Args:
            standard: What cuts images.
            images: uint8.
            targets: As the data has them.
            crop: Gives a random standard crop of the images.
        """
        return standard.centre(images), targets

    def compile(self) -> None:  # noqa: B027 -- most tasks compute nothing of their own
        """Compile what the task itself computes in every step, by torch.compile."""

    def after_step(self, targets: Tensor) -> None:  # noqa: B027 -- most tasks have nothing to do
        """After a step of the weights on these targets, which `inner` gave."""

    def state_dict(self) -> dict[str, Any] | None:
        """What a run's future depends on, if anything."""
        return None

    def load_state_dict(self, state: dict[str, Any]) -> None:  # noqa: B027 -- nor anything to keep
        """Go on from a saved state."""
