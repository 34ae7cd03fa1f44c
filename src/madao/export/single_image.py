"""A policy for one image at a time: what every exported transform is made of.

The law is `FrozenPolicy`'s. In each stage, independently: operation ~ Categorical(selection), applied ~
Bernoulli(application), its magnitude, a fair sign. Random numbers are an argument, so that each target can take them
from where its library's users expect them to come from.
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

_REMEMBERED_GRIDS = 64
_REMEMBERED_PIXELS = 256 * 256
"""How many sampling grids are kept, and for images of up to how many pixels: half a megabyte each at most."""
_REMEMBERED_VALUES = 4096

_FEW_PIXELS = 64 * 64


class Step(NamedTuple):
    """What one stage does to one image.

    Attributes:
        operation: Index into the policy's operations.
        applied: Whether it is applied.
        magnitude: μ in [0, 1].
        sign: +1 or −1.
    """

    operation: int
    applied: bool
    magnitude: float
    sign: float


Steps = tuple[Step, ...]
"""One step a stage."""


def as_spec(policy: Any) -> PolicySpec:
    """A `PolicySpec` from one, from a policy that has one, from the path of a policy.json or from its text."""
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
    """`as_spec` for a library whose transforms see no label, and may draw before they see the image."""
    spec = as_spec(policy)
    if spec.network is not None and not sees_images:
        raise ValueError(
            f"this policy depends on what an image shows, and {library} draws before it sees the images; export to "
            "torchvision, albumentations, timm, python or json, or what images share: madao export --label shared, "
            "spec.of_class(None)"
        )
    if spec.classes:
        raise ValueError(
            f"this policy has a part for each of {len(spec.classes)} classes, and {library}'s transforms see no label; "
            "export to torchvision, python or json, which take it, or the part of one class: madao export --label "
            f"{spec.classes[0]}, spec.of_class({spec.classes[0]!r})"
        )
    return spec


def drawn(spec: PolicySpec) -> tuple[Operation, ...]:
    """The operations that are drawn at all."""
    each = [stage for stages in spec.class_stages or (spec.stages,) for stage in stages]
    return tuple(
        operation
        for position, operation in enumerate(spec.operations)
        if any(stage[position].selection > 0 for stage in each)
    )


class ImageAugmenter:
    """Draws for one image, and applies a draw to the image and to what belongs to it.

    Args:
        spec: The policy.
    """

    def __init__(self, spec: PolicySpec) -> None:
        self.spec = spec
        self.operations = spec.operations
        selection, application, magnitude = (table.transpose(0, 1) for table in spec.tables(torch.float64))
        self._cumulative = [[_cumulative(row) for row in stages] for stages in selection.tolist()]
        self._application: list[list[list[float]]] = application.tolist()
        # Rounded as FrozenPolicy's are: the results agree bit for bit.
        self._magnitude: list[list[list[float]]] = magnitude.float().tolist()
        self.drawn = drawn(spec)
        self.frozen = FrozenPolicy(spec)
        self._own = [built_in(operation) for operation in spec.operations]
        self._values: dict[tuple[float, ...], Tensor] = {}
        self._grids: dict[tuple[float, ...], Tensor] = {}

    @property
    def uniforms(self) -> int:
        """How many random numbers one image takes."""
        return (4 if self.spec.magnitude_jitter else 3) * len(self.spec.stages)

    def steps(self, uniforms: Sequence[float], label: int | None = None, image: Tensor | None = None) -> Steps:
        """A draw for one image from numbers that are uniform in [0, 1): three a stage, four where magnitudes vary.

        Args:
            uniforms: The numbers.
            label: The image's class, where the policy has classes.
            image: `[..., C, H, W]`, where the policy looks at it; of several the first counts.
        """
        if self.frozen.uses_image:
            ends, application, magnitude = self._law(image)
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
        """A draw for one image from torch's global generator; `label` and `image` as of `steps`, where they count."""
        uniforms = torch.rand(self.uniforms, dtype=torch.float64, device="cpu").tolist()
        if isinstance(image, Image.Image):
            _check_mode(image)
            image = from_pil(image) if self.frozen.uses_image else None
        return self.steps(uniforms, label, image)

    def _law(self, image: Tensor | None) -> tuple[list[list[float]], list[list[float]], list[list[float]]]:
        """Of each stage, by what the image shows: the upper ends of the operations' shares, p and μ."""
        if image is None:
            raise ValueError(
                "this policy depends on what an image shows: sample(image=image); or use what images share, "
                "PolicyTransform(spec.of_class(None))"
            )
        batch = image.reshape(-1, *image.shape[-3:])[:1]
        check_images(batch)
        selection, application, magnitude = (table[:, 0].tolist() for table in self.frozen.law_of(batch.cpu()))
        return [_cumulative(row) for row in selection], application, magnitude

    def _row(self, label: int | None) -> int:
        """Where the law of a class is found; labels make no difference where there are no classes."""
        count = len(self.spec.classes)
        if not count:
            return 0
        if label is None:
            raise ValueError(
                f"this policy has a part for each of {count} classes and needs the image's label: transform(image, "
                "label); or use the part of one class, PolicyTransform(spec.of_class(name))"
            )
        if not 0 <= label < count:
            raise ValueError(f"a label must lie in 0 to {count - 1}, got {label!r}")
        return label

    def draw(self, each: Sequence[Steps], device: torch.device | str = "cpu") -> Draw:
        """The draws of several images as a `Draw`."""
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
        """Augment one image `[C, H, W]`, or several `[..., C, H, W]` in the same way."""
        batch = image.reshape(-1, *image.shape[-3:]) if image.ndim >= 3 else image[None]
        check_images(batch)
        check_fill_fits(self.spec.fill, batch)
        return self._apply(batch, steps).reshape(image.shape)

    def apply_each(self, images: Tensor, each: Sequence[Steps]) -> Tensor:
        """Augment images `[B, C, H, W]` each in its own way."""
        return self.frozen.augment(images, self.draw(each, images.device)) if len(images) else images

    def apply_pil(self, image: Image.Image, steps: Steps) -> Image.Image:
        """Augment a PIL image of mode L or RGB; one that is not changed comes back itself."""
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

        `cut` says what becomes of a box that reaches over the image's edge after an operation.
        """
        for matrix in self._matrices(steps, height, width, boxes.device):
            boxes = targets.move_boxes(boxes[None], matrix, height, width)[0]
            boxes = boxes if cut is None else cut(boxes)
        return boxes

    def check_moves(self) -> None:
        """Raise where masks, boxes and points cannot move along with an operation that may be drawn."""
        # Of the whole policy, not of the draw: the error comes with the first image, not after an hour.
        targets.check_moves(self.drawn)

    def moves(self, steps: Steps) -> bool:
        """Whether a draw moves pixels."""
        return any(step.applied and self.operations[step.operation].geometric for step in steps)

    def _apply(self, batch: Tensor, steps: Steps) -> Tensor:
        # Of one small image most of the time would go into preparing what is the same for the next one.
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
        """What `operation.apply_unchecked` does to a batch of one, by way of what is known from the last time."""
        if not operation.has_magnitude:
            return operation.function(batch)
        value = self._value(operation, step)
        if operation.matrix is None:
            return operation.function(batch, value)
        height, width = batch.shape[2:]
        if height * width > _REMEMBERED_PIXELS:
            return operation.function(batch, value, fill=self.spec.fill)
        key = (step.operation, step.magnitude, step.sign, height, width)
        grid = self._grids.get(key)
        if grid is None:
            if len(self._grids) >= _REMEMBERED_GRIDS:
                self._grids.clear()
            with torch.inference_mode(False):  # what is kept may be needed for a gradient the next time
                matrix = operation.matrix(value, height, width)
                grid = self._grids[key] = geometric.sampling_grid(matrix, height, width)
        return geometric.resample(batch, grid, self.spec.fill)

    def _value(self, operation: Operation, step: Step) -> Tensor:
        key = (step.operation, step.magnitude, step.sign)
        value = self._values.get(key)
        if value is None:
            if len(self._values) >= _REMEMBERED_VALUES:  # where every image has magnitudes of its own
                self._values.clear()
            with torch.inference_mode(False):
                value = self._values[key] = strength(operation, step)
        return value

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_values": {}, "_grids": {}}

    def _step_pil(self, image: Image.Image, step: Step) -> Image.Image:
        operation = self.operations[step.operation]
        # Pillow's own tone operations and blends give the same bits and spare two conversions.
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
    """A PIL image of mode L or RGB as uint8 `[C, H, W]`."""
    pixels = torch.from_numpy(np.array(image))
    return pixels[None] if pixels.ndim == 2 else pixels.permute(2, 0, 1).contiguous()


def to_pil(image: Tensor) -> Image.Image:
    """A PIL image from uint8 `[C, H, W]`."""
    planes = image.numpy()
    if len(planes) == 1:
        return Image.fromarray(planes[0])
    # Each the faster way to put planes together, by far faster than torch's.
    if planes[0].size < _FEW_PIXELS:
        return Image.fromarray(np.stack(list(planes), -1))
    return Image.merge("RGB", [Image.fromarray(plane) for plane in planes])


def strength(operation: Operation, step: Step) -> Tensor:
    """The operation's parameter in real units, `[1]`, as `Operation` rounds it; 0 where it has none."""
    magnitude, sign = (
        torch.tensor([value], dtype=torch.float32, device="cpu") for value in (step.magnitude, step.sign)
    )
    return operation.value(magnitude, sign) if operation.has_magnitude else torch.zeros(1)


def _cumulative(selection: list[float]) -> list[float]:
    """Upper ends of each operation's share of [0, 1): a number belongs to the first whose end lies above it."""
    ends = list(itertools.accumulate(selection))
    last = max(position for position, share in enumerate(selection) if share > 0)
    # Rounding must leave no number over, neither for nobody nor for an operation of probability 0.
    return [*ends[:last], *(math.inf for _ in ends[last:])]
