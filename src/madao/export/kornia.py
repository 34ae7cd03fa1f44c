"""A policy as an augmentation module of kornia."""

from typing import Any

import torch
from kornia.augmentation import GeometricAugmentationBase2D
from torch import Tensor

from madao.export.single_image import ImageAugmenter, without_classes
from madao.ops import targets
from madao.policy import Draw


class PolicyTransform(GeometricAugmentationBase2D):
    """A module that augments a batch `[B, C, H, W]` of floats in [0, 1], C of 1 or 3, each image with its own draw.

    In `kornia.augmentation.AugmentationSequential` masks (nearest neighbour, 0 outside), boxes and key points move
    along, in kornia's coordinates (the centre of pixel i lies at i). The last draw is in `_params`, and `module(images,
    params=module._params)` repeats it. Draws come from torch's global generator of the module's device, by default the
    CPU's.

    Args:
        policy: A `PolicySpec`, a policy, or the path of a policy.json.
        p: Probability that the policy is used. The policy has its own probabilities, so the default is 1.
        same_on_batch: Whether all images of a batch share one draw.
        keepdim: Whether an image `[C, H, W]` is returned without a batch dimension.
    """

    def __init__(self, policy: Any, p: float = 1.0, same_on_batch: bool = False, keepdim: bool = False) -> None:
        super().__init__(p=p, same_on_batch=same_on_batch, keepdim=keepdim)
        self.policy: ImageAugmenter = ImageAugmenter(without_classes(policy, "kornia", sees_images=False))

    def generate_parameters(self, batch_shape: tuple[int, ...]) -> dict[str, Tensor]:
        """Draw `choice`, `applied`, `magnitude` and `sign`, each `[B, stages]`."""
        count = min(1, batch_shape[0]) if self.same_on_batch else batch_shape[0]
        numbers = torch.rand(count, self.policy.uniforms, dtype=torch.float64, device=self.device)
        stages = len(self.policy.spec.stages)
        if not count:
            empty = torch.zeros(0, stages)
            return {"choice": empty.long(), "applied": empty.bool(), "magnitude": empty, "sign": empty}
        draw = self.policy.draw([self.policy.steps(row) for row in numbers.tolist()])
        fields = {name: getattr(draw, name).T for name in ("choice", "applied", "magnitude", "sign")}
        return {name: field.expand(batch_shape[0], stages).to(self.device) for name, field in fields.items()}

    def compute_transformation(self, input: Tensor, params: dict[str, Tensor], flags: dict[str, Any]) -> Tensor:
        """Return the `[B, 3, 3]` map of the whole draw from input to output pixels, in kornia's coordinates."""
        height, width = input.shape[-2:]
        # From [−1, 1] (edge to edge) to pixels with centres at whole numbers.
        to_pixels = torch.tensor(
            [[width / 2, 0, (width - 1) / 2], [0, height / 2, (height - 1) / 2], [0, 0, 1]], dtype=torch.float64
        )
        total = torch.eye(3, dtype=torch.float64).repeat(len(params["choice"]), 1, 1)
        for matrices in self._matrices(params, height, width):
            square = torch.cat([matrices, torch.tensor([0.0, 0.0, 1.0]).double().expand(len(matrices), 1, 3)], 1)
            total = torch.linalg.inv(square) @ total
        moved: Tensor = to_pixels @ total @ torch.linalg.inv(to_pixels)
        return moved.to(input)

    def apply_transform(
        self, input: Tensor, params: dict[str, Tensor], flags: dict[str, Any], transform: Tensor | None = None
    ) -> Tensor:
        """Augment a batch with the draw in `params`."""
        draw = Draw(**{name: params[name].T for name in ("choice", "applied", "magnitude", "sign")})
        return self.policy.frozen.augment(input, draw.to(input.device))

    def apply_transform_mask(
        self, input: Tensor, params: dict[str, Tensor], flags: dict[str, Any], transform: Tensor | None = None
    ) -> Tensor:
        """Move masks `[B, C, H, W]` along."""
        self.policy.check_moves()
        for matrices in self._matrices(params, *input.shape[-2:]):
            input = targets.move_masks(input, matrices.to(input.device))
        return input

    def apply_transform_box(self, *arguments: Any, **options: Any) -> Any:
        """Move boxes along."""
        self.policy.check_moves()
        return super().apply_transform_box(*arguments, **options)

    def apply_transform_keypoint(self, *arguments: Any, **options: Any) -> Any:
        """Move key points along."""
        self.policy.check_moves()
        return super().apply_transform_keypoint(*arguments, **options)

    def inverse_transform(self, *_: Any, **__: Any) -> Tensor:
        """Raise: colours cannot be restored."""
        raise NotImplementedError("a policy cannot be inverted; keep a copy of the images")

    def __repr__(self) -> str:
        spec = self.policy.spec
        return f"{type(self).__name__}(stages={len(spec.stages)}, operations={len(spec.operations)}, p={self.p})"

    def _matrices(self, params: dict[str, Tensor], height: int, width: int) -> list[Tensor]:
        """Return the matrices `[B, 2, 3]` of stages that move an image, with the identity for the other images."""
        choice, applied, magnitude, sign = (params[name].cpu() for name in ("choice", "applied", "magnitude", "sign"))
        found = []
        for stage in range(choice.shape[1]):
            matrices = torch.eye(2, 3, dtype=torch.float64).repeat(len(choice), 1, 1)
            moved = torch.zeros(len(choice), dtype=torch.bool)
            for number, operation in enumerate(self.policy.operations):
                chosen = (choice[:, stage] == number) & applied[:, stage]
                if operation.geometric and operation.matrix is not None and chosen.any():
                    strengths = magnitude[chosen, stage], sign[chosen, stage]
                    matrices[chosen] = torch.as_tensor(targets.matrix(operation, *strengths, height, width))
                    moved |= chosen
            if moved.any():
                found.append(matrices)
        return found
