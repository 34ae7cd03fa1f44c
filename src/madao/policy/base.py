"""What every policy is: a law to sample draws from, and the one way a draw is applied."""

import abc
from collections.abc import Callable
from typing import Any, Self, overload

import torch
from torch import Tensor, nn

from madao.labels import IGNORED
from madao.ops import Operation, targets
from madao.ops.checks import check_fill, check_fill_fits, check_images, check_strengths
from madao.ops.dispatch import dispatch_unchecked, grouped
from madao.ops.geometric import Fill
from madao.policy.conditional.features import features
from madao.policy.draw import Draw
from madao.policy.seeded_module import SeededModule


class AugmentationPolicy(SeededModule, abc.ABC):
    """Augments batches of images: `policy(images)` is `policy.augment(images, policy.sample(images))`.

    Images are `[B, C, H, W]`, C of 1 or 3, uint8 or float in [0, 1], on any device; the result has their shape
    and dtype. Each image has its own operation, magnitude and sign in each stage.

    Draws come from the policy's own random numbers unless a generator is given. `eval()` changes nothing: what shall
    not be augmented is not given to the policy.

    The law may be the same for all images, or depend on something of each, its `condition`: a policy with `classes`
    has a law for each of them and wants labels, to all others labels make no difference; a policy that `looks` has one
    for each image.

    Attributes:
        classes: Names of the classes, in the order of labels; none where they make no difference.
        looks: Whether the law depends on what an image shows.
    """

    classes: tuple[str, ...] = ()
    uses_image: bool = False

    def __init__(self, operations: tuple[Operation, ...], stages: int, fill: Fill = 0.0, seed: int = 0) -> None:
        super().__init__(seed)
        if isinstance(stages, bool) or not isinstance(stages, int) or stages < 1:
            raise ValueError(f"stages must be a whole number of at least 1, got {stages!r}")
        self.operations = operations
        self.stages = stages
        self.fill: Fill = check_fill(fill)
        self.fused = True  # by kernels, on a GPU, where they can do it

    @abc.abstractmethod
    def sample(
        self, images: Tensor, generator: torch.Generator | None = None, *, condition: Tensor | None = None
    ) -> Draw:
        """Draw stages, operations, magnitudes and signs for a batch.

        Args:
            images: The batch; only its shape and device matter, unless the policy looks at it.
            generator: Where randomness comes from, on the device of `images`. By default the policy's own.
            condition: What the law of each image depends on, on their device: the labels, `[B]`, for a policy with
                classes; by default what `condition(images)` says.
        """

    def condition(self, images: Tensor, labels: Tensor | None = None) -> Tensor | None:
        """What the law of each image depends on, a row each; None where it is the same for all.

        Args:
            images: The batch.
            labels: The class of each image, `[B]`, which a policy with classes depends on.
        """
        if self.classes:
            return labels
        if not self.uses_image:
            return None
        check_images(images)
        return features(images)

    @overload
    def augment(self, images: Tensor, draw: Draw) -> Tensor: ...
    @overload
    def augment(self, images: Callable[[nn.Module], None]) -> Self: ...
    def augment(self, images: Any, draw: Draw | None = None) -> Any:
        """Augment a batch as a draw says. With a function in place of images this is `nn.Module.apply`.

        A relaxed draw gives the same images bit for bit, with a gradient to the policy in them.
        """
        if draw is None and callable(images) and not isinstance(images, Tensor):
            return super().apply(images)
        if draw is None:
            raise TypeError("apply needs a draw: policy.augment(images, policy.sample(images))")
        check_images(images)
        return self.augment_checked(images, draw)

    def augment_checked(self, images: Tensor, draw: Draw) -> Tensor:
        """`apply` to images that are known to be fit."""
        if len(draw) != len(images):
            raise ValueError(f"the draw is for {len(draw)} images, but there are {len(images)}")
        check_strengths(draw.magnitude, draw.sign, images)
        check_fill_fits(self.fill, images)
        if draw.differentiable and images.dtype == torch.uint8:
            raise ValueError(
                "this draw carries gradients and uint8 images cannot; give float images (images / 255) or draw.detach()"
            )
        for stage in range(draw.stages):
            images = self._apply_stage(images, draw, stage)
        return images

    def augment_masks(self, masks: Tensor, draw: Draw, outside: int = IGNORED) -> Tensor:
        """Move masks as a draw moves their images: to the nearest pixel; tone operations leave them.

        Args:
            masks: `[B, H, W]` of any dtype.
            draw: What was applied to the images.
            outside: What pixels are that come from outside of the image.
        """
        if len(draw) != len(masks):
            raise ValueError(f"the draw is for {len(draw)} images, but there are {len(masks)} masks")
        for stage in range(draw.stages):
            matrix = self.stage_matrix(draw, stage, *masks.shape[-2:])
            masks = targets.move_masks(masks, matrix.detach(), outside)
        return masks

    def stage_matrix(self, draw: Draw, stage: int, height: int, width: int, applied: bool = True) -> Tensor:
        """How a stage moves the pixels of each image, `[B, 2, 3]`, with a gradient to the draw's magnitudes.

        Args:
            draw: What was drawn.
            stage: Which stage.
            height: Of the images.
            width: Of the images.
            applied: Whether an operation that is not applied moves nothing.
        """
        choice, magnitude, sign = draw.choice[stage], draw.magnitude[stage], draw.sign[stage]
        matrix = torch.eye(2, 3, dtype=torch.float64, device=choice.device).expand(len(draw), 2, 3)
        for index, operation in enumerate(self.operations):
            moved = targets.matrix(operation, magnitude, sign, height, width)
            if moved is not None:
                chosen = (choice == index) & draw.applied[stage] if applied else choice == index
                matrix = torch.where(chosen.reshape(-1, 1, 1), moved, matrix)
        return matrix

    def forward(self, images: Tensor, labels: Tensor | None = None) -> Tensor:
        """Augment a batch by a fresh draw. No gradient reaches the policy: what trains it asks for one."""
        check_images(images)
        return self.augment_checked(images, self.sample(images, condition=self.condition(images, labels)))

    def get_extra_state(self) -> dict[str, Any]:
        """The random state, and which operations the parameters belong to, for `state_dict`."""
        operations = [[operation.name, operation.range] for operation in self.operations]
        return super().get_extra_state() | {"operations": operations}

    def set_extra_state(self, state: dict[str, Any]) -> None:
        """Refuse the state of a policy with other operations: its numbers would mean something else here."""
        here = [(operation.name, operation.range) for operation in self.operations]
        there = [(name, span if span is None else tuple(span)) for name, span in state["operations"]]
        if here != there:
            other = next((t for h, t in zip(here, there, strict=False) if h != t), f"{len(there)} operations")
            raise ValueError(
                f"the saved policy has other operations or limits (it has {other}); build this one with the same "
                "operations, limits and without"
            )
        super().set_extra_state(state)

    def extra_repr(self) -> str:
        """Stages and operations, for print."""
        return f"stages={self.stages}, operations={len(self.operations)}, fill={self.fill}"

    def _apply_stage(self, images: Tensor, draw: Draw, stage: int) -> Tensor:
        choice, applied = draw.choice[stage], draw.applied[stage]
        magnitude, sign = draw.magnitude[stage], draw.sign[stage]
        apply = dispatch_unchecked if self.fused else grouped
        if draw.gate is None or draw.weight is None:
            return apply(images, self.operations, choice, magnitude, sign, applied, self.fill)
        # The gate's derivative is operation − image, so the operation is needed for images that skip it too.
        transformed = apply(images, self.operations, choice, magnitude, sign, fill=self.fill)
        result = torch.where(applied.reshape(-1, 1, 1, 1), transformed, images)
        slope = (transformed - images).detach()
        gate, weight = (field[stage].to(images.dtype).reshape(-1, 1, 1, 1) for field in (draw.gate, draw.weight))
        # Exactly zero and exactly one: the gradients come along, the value stays.
        return (result + (gate - gate.detach()) * slope) * weight
