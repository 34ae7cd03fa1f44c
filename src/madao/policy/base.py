"""The interface of every policy: draw per image, then apply the draw."""

import abc
from typing import Any

import torch
from torch import Tensor

from madao.labels import IGNORED
from madao.ops import Operation, targets
from madao.ops.checks import check_fill, check_fill_fits, check_images, check_strengths
from madao.ops.dispatch import dispatch_unchecked, grouped
from madao.ops.geometric import Fill
from madao.policy.draw import Draw
from madao.policy.seeded_module import SeededModule


class AugmentationPolicy(SeededModule, abc.ABC):
    """A module that augments batches of images, each image with its own operations, magnitudes and signs.

    In training mode `policy(images)` is `policy.augment(images, policy.sample(images))`. In evaluation mode
    (`policy.eval()`) it returns the images unchanged; `sample` and `augment` work in both modes.

    Images are `[B, C, H, W]`, C of 1 or 3, uint8 or float in [0, 1], on any device. Shape and dtype do not change.
    Draws come from the policy's own random numbers unless a generator is given.

    Attributes:
        classes: Names of the classes, in the order of labels, if the policy draws by class; empty otherwise.
        uses_image: Whether the draws depend on the content of the image.
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
        self.fused = True  # use the Triton kernels on a GPU, where they support images and operations

    @abc.abstractmethod
    def sample(
        self, images: Tensor, generator: torch.Generator | None = None, *, condition: Tensor | None = None
    ) -> Draw:
        """Draw operations, magnitudes and signs for a batch.

        Args:
            images: The batch. Only its shape and device matter, unless the policy uses the image.
            generator: Source of randomness, on the device of `images`. By default the policy's own.
            condition: One row per image, as `condition` returns it. By default `condition(images)`.
        """

    def condition(self, images: Tensor, labels: Tensor | None = None) -> Tensor | None:
        """Return the label or the features that an image's probabilities depend on; None if all images share them.

        Only policies with classes use the labels, `[B]`.
        """
        return None

    def augment(self, images: Tensor, draw: Draw) -> Tensor:
        """Augment a batch with a draw.

        A relaxed draw gives the same images bit for bit, and they carry a gradient to the policy.
        """
        check_images(images)
        return self.augment_checked(images, draw)

    def augment_checked(self, images: Tensor, draw: Draw) -> Tensor:
        """Augment images that `check_images` has already checked."""
        if len(draw) != len(images):
            raise ValueError(f"the draw is for {len(draw)} images, but there are {len(images)}")
        check_strengths(draw.magnitude, draw.sign, images)
        check_fill_fits(self.fill, images)
        if draw.differentiable and images.dtype == torch.uint8:
            raise ValueError(
                "this draw carries gradients and uint8 images cannot; give float images (images / 255) or draw.detach()"
            )
        for stage in range(draw.stages):
            images = self._augment_stage(images, draw, stage)
        return images

    def augment_masks(self, masks: Tensor, draw: Draw, outside: int = IGNORED) -> Tensor:
        """Move masks `[B, H, W]` of any dtype as the draw moves their images, to the nearest pixel.

        Pixels from outside the image get the value `outside`. Tone operations leave masks unchanged.
        """
        if len(draw) != len(masks):
            raise ValueError(f"the draw is for {len(draw)} images, but there are {len(masks)} masks")
        for stage in range(draw.stages):
            matrix = self.stage_matrix(draw, stage, *masks.shape[-2:])
            masks = targets.move_masks(masks, matrix.detach(), outside)
        return masks

    def stage_matrix(self, draw: Draw, stage: int, height: int, width: int, applied: bool = True) -> Tensor:
        """Return each image's affine matrix in a stage, `[B, 2, 3]` in float64, with a gradient to the magnitudes.

        It maps output to input positions. If `applied`, operations that are drawn but not applied give the identity.
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
        """Augment a batch with a fresh draw, without a gradient to the policy; in evaluation mode return it unchanged.

        Only policies with classes use the labels, `[B]`.
        """
        if not self.training:
            return images
        check_images(images)
        return self.augment_checked(images, self.sample(images, condition=self.condition(images, labels)))

    def get_extra_state(self) -> dict[str, Any]:
        """Return the random state and the operations that the parameters belong to."""
        operations = [[operation.name, operation.range] for operation in self.operations]
        return super().get_extra_state() | {"operations": operations}

    def set_extra_state(self, state: dict[str, Any]) -> None:
        """Restore the random state. Raise if the parameters belong to other operations."""
        here = [(operation.name, operation.range) for operation in self.operations]
        there = [(name, span if span is None else tuple(span)) for name, span in state["operations"]]
        if here != there:
            other = next((t for h, t in zip(here, there, strict=False) if h != t), f"{len(there)} operations")
            raise ValueError(
                f"the saved policy has other operations or limits (it has {other}); build this one with the same "
                "operations, limits and exclude"
            )
        super().set_extra_state(state)

    def extra_repr(self) -> str:
        """Return the settings that `print` shows."""
        return f"stages={self.stages}, operations={len(self.operations)}, fill={self.fill}"

    def _augment_stage(self, images: Tensor, draw: Draw, stage: int) -> Tensor:
        choice, applied = draw.choice[stage], draw.applied[stage]
        magnitude, sign = draw.magnitude[stage], draw.sign[stage]
        run = dispatch_unchecked if self.fused else grouped
        if draw.gate is None or draw.weight is None:
            return run(images, self.operations, choice, magnitude, sign, applied, self.fill)
        # The gate's derivative is operation − image, so images that skip the operation need it too.
        transformed = run(images, self.operations, choice, magnitude, sign, fill=self.fill)
        result = torch.where(applied.reshape(-1, 1, 1, 1), transformed, images)
        slope = (transformed - images).detach()
        gate, weight = (field[stage].to(images.dtype).reshape(-1, 1, 1, 1) for field in (draw.gate, draw.weight))
        # The added term is exactly 0 and the factor exactly 1: only gradients change.
        return (result + (gate - gate.detach()) * slope) * weight
