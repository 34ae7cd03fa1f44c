"""A policy as a transform of albumentations."""

from typing import Any

import albumentations
import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from madao.export.single_image import ImageAugmenter, Step, Steps, without_classes

Array = npt.NDArray[Any]


class PolicyTransform(albumentations.DualTransform):  # type: ignore[misc]
    """A transform that augments an image with a policy, and moves masks, boxes and key points along.

    Images are `[H, W, C]` or `[H, W]`, C of 1 or 3, uint8 or floating point in [0, 1]. Masks are read at the nearest
    pixel and are 0 outside; tone operations change the image only. Use it in `albumentations.Compose` with
    `bbox_params` and `keypoint_params`, like any other transform. All slices of `images` and volumes share one draw.

    Draws come from the transform's own `py_random`, which `Compose(seed=…)` seeds. As in all of albumentations,
    `torch.manual_seed` has no effect: seed each worker of a `DataLoader` with `set_random_seed`.

    Args:
        policy: A `PolicySpec`, a policy, the path of a policy.json or its text.
        p: Probability that the policy is used. The policy has its own probabilities, so the default is 1.
    """

    _targets = albumentations.core.type_definitions.ALL_TARGETS

    def __init__(self, policy: Any, p: float = 1.0) -> None:
        super().__init__(p=p)
        spec = without_classes(policy, "albumentations")
        self.policy = spec.dumps()  # as text, so that the result of to_dict can be written to a file
        self.engine = ImageAugmenter(spec)

    def sample(self, image: Array | None = None) -> Steps:
        """Draw for one image, one step per stage. The image matters only to policies that depend on it."""
        uniforms = [self.py_random.random() for _ in range(self.engine.uniforms)]
        return self.engine.steps(uniforms, image=None if image is None else _planes(image))

    def get_params(self) -> dict[str, Any]:
        """Return the draw as plain numbers: `{"steps": [[operation, applied, magnitude, sign], …]}`."""
        return {} if self.engine.frozen.uses_image else {"steps": [list(step) for step in self.sample()]}

    def get_params_dependent_on_data(self, params: dict[str, Any], data: dict[str, Any]) -> dict[str, Any]:
        """Return the draw of a policy that depends on the image; the first of several images counts."""
        if not self.engine.frozen.uses_image:
            return {}
        for name, first in (("image", ()), ("images", (0,)), ("volume", (0,)), ("volumes", (0, 0))):
            if name in data:
                return {"steps": [list(step) for step in self.sample(data[name][first])]}
        raise ValueError("this policy depends on the image: give one beside the targets that move along with it")

    def apply(self, img: Array, *_: Any, steps: list[list[Any]], **params: Any) -> Array:
        """Augment an image."""
        result = self.engine.augment(_planes(img), _steps(steps))
        array: Array = (result[0] if img.ndim == 2 else result.permute(1, 2, 0).contiguous()).numpy()
        return array

    def apply_to_mask(self, mask: Array, *_: Any, steps: list[list[Any]], **params: Any) -> Array:
        """Move a mask `[H, W]` or `[H, W, C]` along."""
        if not self._moves(steps):
            return mask
        layers = torch.from_numpy(np.ascontiguousarray(mask))
        moved = self.engine.masks(layers if mask.ndim == 2 else layers.permute(2, 0, 1), _steps(steps))
        array: Array = (moved if mask.ndim == 2 else moved.permute(1, 2, 0)).contiguous().numpy()
        return array

    def apply_to_bboxes(self, bboxes: Array, *_: Any, steps: list[list[Any]], **params: Any) -> Array:
        """Move boxes along, in fractions of the image's sides as in albumentations."""
        if not self._moves(steps) or not len(bboxes):
            return bboxes
        height, width = params["shape"][:2]
        sides = torch.tensor([width, height, width, height], dtype=torch.float64)

        def cut(boxes: Tensor) -> Tensor:
            return torch.minimum(boxes.clamp(min=0), sides)

        # Clip boxes to the image before each later operation; after the last one, Compose clips them.
        geometric = [step for step in _steps(steps) if self.engine.moves((step,))]
        boxes = torch.from_numpy(bboxes[:, :4].astype(np.float64)) * sides
        boxes = self.engine.boxes(boxes, tuple(geometric[:-1]), height, width, cut)
        boxes = self.engine.boxes(boxes, tuple(geometric[-1:]), height, width)
        result: Array = bboxes.copy()
        result[:, :4] = (boxes / sides).numpy()
        return result

    def apply_to_keypoints(self, keypoints: Array, *_: Any, steps: list[list[Any]], **params: Any) -> Array:
        """Move key points (x, y, z, angle, scale, …) along, with the centre of pixel i at i as in albumentations."""
        if not self._moves(steps) or not len(keypoints):
            return keypoints
        height, width = params["shape"][:2]
        # The angle turns with its direction, counter-clockwise with y downwards.
        angle = keypoints[:, 3].astype(np.float64)
        ahead = keypoints[:, :2] + np.stack([np.cos(angle), -np.sin(angle)], -1)
        both = torch.from_numpy(np.concatenate([keypoints[:, :2], ahead]).astype(np.float64))
        start, end = (self.engine.points(both + 0.5, _steps(steps), height, width) - 0.5).numpy().reshape(2, -1, 2)
        result: Array = keypoints.copy()
        result[:, :2] = start
        result[:, 3] = np.arctan2(start[:, 1] - end[:, 1], end[:, 0] - start[:, 0]) % (2 * np.pi)
        return result

    def get_transform_init_args_names(self) -> tuple[str, ...]:
        """Return the names of the arguments that `to_dict` writes."""
        return ("policy",)

    def __repr__(self) -> str:
        spec = self.engine.spec
        return f"{type(self).__name__}(stages={len(spec.stages)}, operations={len(spec.operations)}, p={self.p})"

    def _moves(self, steps: list[list[Any]]) -> bool:
        self.engine.check_moves()
        return self.engine.moves(_steps(steps))


def _planes(img: Array) -> Tensor:
    """Return `[C, H, W]` from `[H, W, C]` or `[H, W]`."""
    planes = torch.from_numpy(np.require(img, requirements=["C", "W"]))
    return planes[None] if img.ndim == 2 else planes.permute(2, 0, 1).contiguous()


def _steps(plain: list[list[Any]]) -> Steps:
    return tuple(Step(*step) for step in plain)
