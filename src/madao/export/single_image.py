"""A policy for one image at a time, the common part of all exported transforms.

Draws have the distribution of `FrozenPolicy`. In each stage, independently: operation ~ Categorical(selection), applied
~ Bernoulli(application), its magnitude, a fair sign. Random numbers are an argument, so each target can take them from
its library's usual source.
"""

import itertools
import math
import os
from bisect import bisect_right
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from madao.export import pillow
from madao.ops import Operation, geometric, targets
from madao.ops.checks import check_fill_fits, check_images
from madao.ops.registry import built_in
from madao.policy import Draw, FrozenPolicy, PolicySpec

_MAX_CACHED_GRIDS = 64
_MAX_CACHED_PIXELS = 256 * 256
"""Limits of the cache of sampling grids: their number, and the pixels of an image (half a megabyte per grid)."""
_MAX_CACHED_VALUES = 4096

_FEW_PIXELS = 64 * 64
"""Images with fewer pixels are converted to PIL faster by numpy than by Pillow."""


class Step(NamedTuple):
    """The draw of one stage for one image, of the operation with this index, with μ in [0, 1] and a sign of ±1."""

    operation: int
    applied: bool
    magnitude: float
    sign: float


Steps = tuple[Step, ...]
"""The draw for one image: one step per stage."""


def as_spec(policy: Any) -> PolicySpec:
    """Return the spec of a `PolicySpec`, a policy with `spec()`, the path of a policy.json, or its text."""
    if isinstance(policy, PolicySpec):
        return policy
    if isinstance(policy, str) and policy.lstrip().startswith("{"):
        return PolicySpec.loads(policy)
    if isinstance(policy, str | os.PathLike):
        return PolicySpec.load(policy)
    if hasattr(policy, "spec"):
        return as_spec(policy.spec())
    raise TypeError(
        f"policy must be a PolicySpec, a policy with spec(), or the path of a policy.json, got {type(policy).__name__}"
    )


def without_classes(policy: Any, library: str, sees_images: bool = True) -> PolicySpec:
    """Return the spec for a library whose transforms have no label, and may not see the image before they draw."""
    spec = as_spec(policy)
    if spec.network is not None and not sees_images:
        raise ValueError(
            f"this policy depends on the image, and {library} draws before it sees the images; export to torchvision, "
            "albumentations, timm, python or json, or export the part that all images share: `label=shared`, in Python "
            "spec.of_class(None)"
        )
    if spec.classes:
        raise ValueError(
            f"this policy has a part for each of {len(spec.classes)} classes, and {library}'s transforms see no label; "
            "export to torchvision, python or json, which take one, or export the part of one class: "
            f"`label={spec.classes[0]}`, in Python spec.of_class({spec.classes[0]!r})"
        )
    return spec


def drawn(spec: PolicySpec) -> tuple[Operation, ...]:
    """Return the operations that have a probability above zero in some stage."""
    each = [stage for stages in spec.class_stages or (spec.stages,) for stage in stages]
    return tuple(
        operation
        for position, operation in enumerate(spec.operations)
        if any(stage[position].selection > 0 for stage in each)
    )


class ImageAugmenter:
    """A policy that draws for one image, and applies draws to images, masks, boxes and points."""

    def __init__(self, spec: PolicySpec) -> None:
        self.spec = spec
        self.operations = spec.operations
        selection, application, magnitude = (table.transpose(0, 1) for table in spec.tables(torch.float64))
        self._cumulative = [[_cumulative(row) for row in stages] for stages in selection.tolist()]
        self._application: list[list[list[float]]] = application.tolist()
        # Rounded as in FrozenPolicy, so that results agree bit for bit.
        self._magnitude: list[list[list[float]]] = magnitude.float().tolist()
        self.drawn = drawn(spec)
        self.frozen = FrozenPolicy(spec)
        self._own = [built_in(operation) for operation in spec.operations]
        self._values: dict[tuple[float, ...], Tensor] = {}
        self._grids: dict[tuple[float, ...], Tensor] = {}

    @property
    def uniforms(self) -> int:
        """Number of random numbers per image."""
        return (4 if self.spec.magnitude_jitter else 3) * len(self.spec.stages)

    def steps(self, uniforms: Sequence[float], label: int | None = None, image: Tensor | None = None) -> Steps:
        """Draw for one image from random numbers, uniform in [0, 1): three per stage, four with a magnitude jitter.

        `label` is for a policy with classes; `image`, `[..., C, H, W]`, for one that uses the image: the first counts.
        """
        if self.frozen.uses_image:
            ends, application, magnitude = self._tables(image)
        else:
            which = self._row(label)
            ends, application, magnitude = self._cumulative[which], self._application[which], self._magnitude[which]
        found, each = [], len(uniforms) // len(ends)
        for stage, cumulative in enumerate(ends):
            first, second, third, *fourth = uniforms[each * stage : each * (stage + 1)]
            operation = bisect_right(cumulative, first)
            applied = second < application[stage][operation]
            weaker = 1 - self.spec.magnitude_jitter * fourth[0] if fourth else 1.0
            sign = 1.0 if third < 0.5 else -1.0
            found.append(Step(operation, applied, weaker * magnitude[stage][operation], sign))
        return tuple(found)

    def sample(self, label: int | None = None, image: Tensor | Image.Image | None = None) -> Steps:
        """Draw for one image from torch's global generator. `label` and `image` are those of `steps`."""
        uniforms = torch.rand(self.uniforms, dtype=torch.float64, device="cpu").tolist()
        if isinstance(image, Image.Image):
            _check_mode(image)
            image = from_pil(image) if self.frozen.uses_image else None
        return self.steps(uniforms, label, image)

    def _tables(self, image: Tensor | None) -> tuple[list[list[float]], list[list[float]], list[list[float]]]:
        """Return cumulative selection probabilities, p and μ of each stage for an image."""
        if image is None:
            raise ValueError(
                "this policy depends on the image: call sample(image=image), or use the part that all images share, "
                "PolicyTransform(spec.of_class(None))"
            )
        batch = image.reshape(-1, *image.shape[-3:])[:1]
        check_images(batch)
        selection, application, magnitude = (table[:, 0].tolist() for table in self.frozen.tables_of(batch.cpu()))
        return [_cumulative(row) for row in selection], application, magnitude

    def _row(self, label: int | None) -> int:
        """Return the row of a class in the tables; 0 without classes."""
        count = len(self.spec.classes)
        if not count:
            return 0
        if label is None:
            raise ValueError(
                f"this policy has a part for each of {count} classes and needs the image's label: call "
                "transform(image, label), or use the part of one class, PolicyTransform(spec.of_class(name))"
            )
        if not 0 <= label < count:
            raise ValueError(f"a label must lie in 0 to {count - 1}, got {label!r}")
        return label

    def draw(self, each: Sequence[Steps], device: torch.device | str = "cpu") -> Draw:
        """Return the draws of several images as a `Draw`."""
        stages = range(len(self.spec.stages))
        columns = [[list(field) for field in zip(*(steps[k] for steps in each), strict=True)] for k in stages]
        choice, applied, magnitude, sign = zip(*columns, strict=True)
        return Draw(
            choice=torch.tensor(choice, device=device),
            applied=torch.tensor(applied, device=device),
            magnitude=torch.tensor(magnitude, device=device, dtype=torch.float32),
            sign=torch.tensor(sign, device=device, dtype=torch.float32),
        )

    def augment(self, image: Tensor, steps: Steps) -> Tensor:
        """Augment one image `[C, H, W]`, or several `[..., C, H, W]` with the same draw."""
        batch = image.reshape(-1, *image.shape[-3:]) if image.ndim >= 3 else image[None]
        check_images(batch)
        check_fill_fits(self.spec.fill, batch)
        return self._apply(batch, steps).reshape(image.shape)

    def apply_pil(self, image: Image.Image, steps: Steps) -> Image.Image:
        """Augment a PIL image of mode L or RGB; return the same object if no operation is applied."""
        _check_mode(image)
        if not isinstance(self.spec.fill, float):
            check_fill_fits(self.spec.fill, torch.empty(1, len(image.getbands()), 0, 0))
        for step in steps:
            if step.applied:
                image = self._step_pil(image, step)
        return image

    def masks(self, masks: Tensor, steps: Steps) -> Tensor:
        """Move masks `[..., H, W]` of any dtype along with one image: nearest neighbour, 0 outside."""
        height, width = masks.shape[-2:]
        for matrix in self._matrices(steps, height, width, masks.device):
            masks = targets.move_masks(masks[None], matrix)[0]
        return masks

    def points(self, points: Tensor, steps: Steps, height: int, width: int) -> Tensor:
        """Move points `[N, 2]` along with one image, in pixels from edge to edge."""
        for matrix in self._matrices(steps, height, width, points.device):
            points = targets.move_points(points[None], matrix, height, width)[0]
        return points

    def boxes(
        self, boxes: Tensor, steps: Steps, height: int, width: int, cut: Callable[[Tensor], Tensor] | None = None
    ) -> Tensor:
        """Move boxes `[N, 4]` (left, top, right, bottom) along with one image, in pixels from edge to edge.

        `cut` clips boxes that extend over the image's edge, after each operation.
        """
        for matrix in self._matrices(steps, height, width, boxes.device):
            boxes = targets.move_boxes(boxes[None], matrix, height, width)[0]
            boxes = boxes if cut is None else cut(boxes)
        return boxes

    def check_moves(self) -> None:
        """Raise if masks, boxes and points cannot move along with an operation that may be drawn."""
        # Check the whole policy, not the draw: the error comes with the first image, not after an hour.
        targets.check_moves(self.drawn)

    def moves(self, steps: Steps) -> bool:
        """Return whether a draw moves pixels."""
        return any(step.applied and self.operations[step.operation].geometric for step in steps)

    def _apply(self, batch: Tensor, steps: Steps) -> Tensor:
        # For one small image, preparing values and grids takes most of the time; they are cached.
        quick = len(batch) == 1 and batch.device.type == "cpu" and batch.dtype in (torch.uint8, torch.float32)
        for step in steps:
            if not step.applied:
                continue
            operation = self.operations[step.operation]
            if quick and self._own[step.operation]:
                batch = self._quick(batch, operation, step)
            else:
                magnitude, sign = (
                    torch.full((len(batch),), value, dtype=torch.float32, device=batch.device)
                    for value in (step.magnitude, step.sign)
                )
                batch = operation.apply_unchecked(batch, magnitude, sign, self.spec.fill)
        return batch

    def _quick(self, batch: Tensor, operation: Operation, step: Step) -> Tensor:
        """Do what `operation.apply_unchecked` does to a batch of one, with cached values and grids."""
        if not operation.has_magnitude:
            return operation.function(batch)
        value = self._value(operation, step)
        if operation.matrix is None:
            return operation.function(batch, value)
        height, width = batch.shape[2:]
        if height * width > _MAX_CACHED_PIXELS:
            return operation.function(batch, value, fill=self.spec.fill)
        key = (step.operation, step.magnitude, step.sign, height, width)
        grid = self._grids.get(key)
        if grid is None:
            if len(self._grids) >= _MAX_CACHED_GRIDS:
                self._grids.clear()
            with torch.inference_mode(False):  # a later call may need gradients through it
                matrix = operation.matrix(value, height, width)
                grid = self._grids[key] = geometric.sampling_grid(matrix, height, width)
        return geometric.resample(batch, grid, self.spec.fill)

    def _value(self, operation: Operation, step: Step) -> Tensor:
        key = (step.operation, step.magnitude, step.sign)
        value = self._values.get(key)
        if value is None:
            if len(self._values) >= _MAX_CACHED_VALUES:  # reached if every image has its own magnitudes
                self._values.clear()
            with torch.inference_mode(False):
                value = self._values[key] = strength(operation, step)
        return value

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_values": {}, "_grids": {}}

    def _step_pil(self, image: Image.Image, step: Step) -> Image.Image:
        operation = self.operations[step.operation]
        # Pillow's tone operations and blends give the same bits and avoid two conversions.
        function = pillow.TONE.get(operation.name)
        if function is not None and self._own[step.operation]:
            return function(image, self._value(operation, step).item())
        return to_pil(self._apply(from_pil(image)[None], (step,))[0])

    def _matrices(self, steps: Steps, height: int, width: int, device: torch.device) -> list[Tensor]:
        found = []
        for step in steps:
            operation = self.operations[step.operation]
            if step.applied and operation.geometric:
                numbers = torch.tensor([[step.magnitude], [step.sign]], dtype=torch.float32)
                matrix = targets.matrix(operation, numbers[0], numbers[1], height, width)
                found.append(torch.as_tensor(matrix, device=device))
        return found


def _check_mode(image: Image.Image) -> None:
    if image.mode not in ("L", "RGB"):
        raise ValueError(
            f"a PIL image must have mode L or RGB, got {image.mode}; convert it first: image.convert('RGB')"
        )


def from_pil(image: Image.Image) -> Tensor:
    """Return a PIL image of mode L or RGB as uint8 `[C, H, W]`."""
    pixels = torch.from_numpy(np.array(image))
    return pixels[None] if pixels.ndim == 2 else pixels.permute(2, 0, 1).contiguous()


def to_pil(image: Tensor) -> Image.Image:
    """Return uint8 `[C, H, W]` as a PIL image."""
    planes = image.numpy()
    if len(planes) == 1:
        return Image.fromarray(planes[0])
    # Both ways are much faster than a permutation in torch.
    if planes[0].size < _FEW_PIXELS:
        return Image.fromarray(np.stack(list(planes), -1))
    return Image.merge("RGB", [Image.fromarray(plane) for plane in planes])


def strength(operation: Operation, step: Step) -> Tensor:
    """Return the operation's parameter in real units, `[1]`, rounded as in `Operation`; 0 without a magnitude."""
    magnitude, sign = (
        torch.tensor([value], dtype=torch.float32, device="cpu") for value in (step.magnitude, step.sign)
    )
    return operation.value(magnitude, sign) if operation.has_magnitude else torch.zeros(1)


def _cumulative(selection: list[float]) -> list[float]:
    """Return the upper ends of the operations' shares of [0, 1); a number draws the first with a higher end."""
    ends = list(itertools.accumulate(selection))
    last = max(position for position, share in enumerate(selection) if share > 0)
    # The last operation takes all remaining numbers: rounding must not draw one of probability 0, or none.
    return [*ends[:last], *(math.inf for _ in ends[last:])]
