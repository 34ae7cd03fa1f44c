"""A policy as a transform of `torchvision.transforms.v2`."""

import math
from typing import Any

import PIL.Image
import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_unflatten
from torchvision import tv_tensors
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional
from torchvision.tv_tensors import BoundingBoxFormat

from madao.export.single_image import ImageAugmenter, Steps, as_spec

_KEY_POINTS: tuple[type, ...] = (tv_tensors.KeyPoints,) if hasattr(tv_tensors, "KeyPoints") else ()
_ROTATED = ("XYWHR", "CXCYWHR", "XYXYXYXY")


class PolicyTransform(v2.Transform):  # type: ignore[misc]
    """A transform that augments a sample: the image, and with it masks, boxes and key points.

    Images are PIL images of mode L or RGB, or tensors `[..., C, H, W]`, C of 1 or 3, uint8 or float in [0, 1], plain or
    `tv_tensors.Image`. Type, shape and dtype do not change. Each image of a batch has its own draw; masks of a batch
    begin with its dimensions. All frames of a `Video` share one draw, as do all images of one sample.

    Masks, bounding boxes and key points move along. Masks are read at the nearest pixel and are 0 outside. Boxes may
    have any format and are clipped by their `clamping_mode`. Key points are in pixels from edge to edge, as in
    torchvision's `rotate` and `affine`.

    Draws come from torch's global generator: `torch.manual_seed` repeats them, and workers of a `DataLoader` differ.

    A policy with classes needs the label in the sample, `transform(image, label)`, which `transforms=` of torchvision's
    data sets provides: an int or an integer tensor, for a batch `[B]`. The label is returned unchanged. A policy that
    depends on the image uses the first image of a sample, and the first frame of a video.

    Args:
        policy: A `PolicySpec`, a policy, or the path of a policy.json.
    """

    def __init__(self, policy: Any) -> None:
        super().__init__()
        self.policy = ImageAugmenter(as_spec(policy))

    def forward(self, *inputs: Any) -> Any:
        """Augment a sample."""
        if not self.policy.spec.classes:
            return super().forward(*inputs)
        flat, structure = tree_flatten(inputs if len(inputs) > 1 else inputs[0])
        needed = self._needs_transform_list(flat)
        labels = [item for item in flat if _is_label(item)]
        if len(labels) != 1:
            raise ValueError(
                f"this policy has a part for each of {len(self.policy.spec.classes)} classes and needs one label in "
                f"the sample, transform(image, label), an int or an integer tensor; got {len(labels)}"
            )
        params = self.make_params([item for item, needs in zip(flat, needed, strict=True) if needs], labels[0])
        results = [self.transform(item, params) if needs else item for item, needs in zip(flat, needed, strict=True)]
        return tree_unflatten(results, structure)

    def sample(self, label: int | None = None, image: Any = None) -> Steps:
        """Draw for one image, one step per stage. Label and image matter only to policies that depend on them."""
        return self.policy.sample(label, image)

    def make_params(self, flat_inputs: list[Any], labels: Any = None) -> dict[str, Any]:
        """Draw for each image: `{"steps": [...], "shape": leading dimensions of the images}`."""
        images = [item for item in flat_inputs if not _belongs(item)]
        if len(images) < len(flat_inputs):
            self.policy.check_moves()
        shapes = {_leading(item) for item in images} or {()}
        if len(shapes) > 1:
            raise ValueError(f"the images of a sample must have the same leading dimensions, got {sorted(shapes)}")
        shape = shapes.pop()
        count = math.prod(shape)
        each = [None] * count if labels is None else torch.as_tensor(labels).reshape(-1).tolist()
        if len(each) != count:
            raise ValueError(f"there are {count} images in the sample, but {len(each)} labels; give one for each")
        shown = self._each_image(images, count)
        return {"steps": [self.sample(*one) for one in zip(each, shown, strict=True)], "shape": shape}

    def _each_image(self, images: list[Any], count: int) -> list[Any]:
        """Return the image of each draw, for a policy that depends on it; otherwise None."""
        if not self.policy.frozen.uses_image or not images or not count:
            return [None] * count
        first = images[0]
        if isinstance(first, PIL.Image.Image):
            return [first]
        # A video is `[..., T, C, H, W]`.
        return list(first.as_subclass(Tensor).reshape(count, -1, *first.shape[-3:]))

    def transform(self, inpt: Any, params: dict[str, Any]) -> Any:
        """Augment one item of a sample, or move it along."""
        each: list[Steps] = params["steps"]
        shape: tuple[int, ...] = params["shape"]
        if isinstance(inpt, PIL.Image.Image):
            return self.policy.apply_pil(inpt, each[0])
        plain = inpt.as_subclass(Tensor)
        if isinstance(inpt, tv_tensors.Mask):
            moved = self._masks(plain, each, shape)
        elif isinstance(inpt, (tv_tensors.BoundingBoxes, *_KEY_POINTS)):
            if shape:
                raise ValueError(
                    f"boxes and key points belong to one image, but there is a batch of shape {list(shape)}; augment "
                    "images before they are batched"
                )
            move = self._boxes if isinstance(inpt, tv_tensors.BoundingBoxes) else self._points
            moved = move(inpt, plain, each[0])
        elif shape:
            flat = plain.flatten(0, len(shape) - 1)
            moved = self._images(flat, each).reshape(plain.shape)
        else:
            moved = self.policy.augment(plain, each[0])
        return tv_tensors.wrap(moved, like=inpt) if isinstance(inpt, tv_tensors.TVTensor) else moved

    def extra_repr(self) -> str:
        """Return the settings that `print` shows."""
        spec = self.policy.spec
        return f"stages={len(spec.stages)}, operations={len(spec.operations)}, fill={spec.fill}"

    def _images(self, images: Tensor, each: list[Steps]) -> Tensor:
        if images.ndim == 4:
            return self.policy.frozen.augment(images, self.policy.draw(each, images.device)) if each else images
        return torch.stack([self.policy.augment(video, steps) for video, steps in zip(images, each, strict=True)])

    def _masks(self, masks: Tensor, each: list[Steps], shape: tuple[int, ...]) -> Tensor:
        if not shape:
            return self.policy.masks(masks, each[0])
        if masks.shape[: len(shape)] != shape or masks.ndim < len(shape) + 2:
            raise ValueError(
                f"masks beside a batch of images of shape {list(shape)} must begin with that shape, got "
                f"{list(masks.shape)}"
            )
        flat = masks.flatten(0, len(shape) - 1)
        moved = [self.policy.masks(mask, steps) for mask, steps in zip(flat, each, strict=True)]
        return torch.stack(moved).reshape(masks.shape) if moved else masks

    def _points(self, like: Any, points: Tensor, steps: Steps) -> Tensor:
        if not self.policy.moves(steps):
            return points
        height, width = like.canvas_size
        moved = self.policy.points(points.reshape(-1, 2).double(), steps, height, width).reshape(points.shape)
        return _as_dtype(moved, points.dtype)

    def _boxes(self, like: Any, boxes: Tensor, steps: Steps) -> Tensor:
        if not self.policy.moves(steps) or not boxes.numel():
            return boxes
        height, width = like.canvas_size
        # Compare names: older versions of torchvision have fewer members.
        rotated = like.format.name in _ROTATED
        between = BoundingBoxFormat.XYXYXYXY if rotated else BoundingBoxFormat.XYXY
        options = {"clamping_mode": like.clamping_mode} if hasattr(like, "clamping_mode") else {}

        def cut(moved: Tensor) -> Tensor:
            clamped: Tensor = functional.clamp_bounding_boxes(
                moved, format=between, canvas_size=(height, width), **options
            )
            return clamped

        moved = functional.convert_bounding_box_format(boxes.double(), old_format=like.format, new_format=between)
        if rotated:
            for step in steps:  # one by one, with a rectangle made and clipped after each
                if self.policy.moves((step,)):
                    corners = self.policy.points(moved.reshape(-1, 2), (step,), height, width)
                    moved = cut(_rectangles(corners.reshape(-1, 4, 2)))
        else:
            moved = self.policy.boxes(moved, steps, height, width, cut)
        moved = functional.convert_bounding_box_format(moved, old_format=between, new_format=like.format)
        return _as_dtype(moved, boxes.dtype)


def _belongs(item: Any) -> bool:
    """Return whether an item of a sample is a mask, boxes or key points."""
    return isinstance(item, (tv_tensors.Mask, tv_tensors.BoundingBoxes, *_KEY_POINTS))


def _is_label(item: Any) -> bool:
    """Return whether an item is a whole number, or a plain tensor of them."""
    if isinstance(item, Tensor):
        return not item.is_floating_point() and item.dtype != torch.bool and item.ndim <= 1
    return isinstance(item, int) and not isinstance(item, bool)


def _leading(item: Any) -> tuple[int, ...]:
    if isinstance(item, PIL.Image.Image):
        return ()
    return tuple(item.shape[: -4 if isinstance(item, tv_tensors.Video) else -3])


def _as_dtype(values: Tensor, dtype: torch.dtype) -> Tensor:
    return (values if dtype.is_floating_point else values.round()).to(dtype)


def _rectangles(corners: Tensor) -> Tensor:
    """Return rectangles along the moved upper sides that contain the moved corners: `[N, 4, 2]` → `[N, 8]`.

    A shear turns a rotated box into a parallelogram, but the formats hold rectangles only.
    """
    along_x = corners[:, 1] - corners[:, 0]
    along_x = along_x / along_x.norm(dim=-1, keepdim=True).clamp(min=torch.finfo(corners.dtype).tiny)
    along_y = torch.stack([-along_x[:, 1], along_x[:, 0]], -1)
    axes = torch.stack([along_x, along_y], 1)  # [N, 2, 2]
    low, high = torch.aminmax(corners @ axes.transpose(1, 2), dim=1)
    left, top, right, bottom = low[:, 0], low[:, 1], high[:, 0], high[:, 1]
    rectangle = torch.stack([left, top, right, top, right, bottom, left, bottom], -1).reshape(-1, 4, 2)
    return (rectangle @ axes).reshape(-1, 8)
