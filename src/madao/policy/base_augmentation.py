"""Base augmentation, batched on the device: crop and flip, a policy, normalise and Cutout."""

import dataclasses
import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from madao.labels import IGNORED
from madao.ops.checks import check_images, check_range
from madao.policy.base import AugmentationPolicy
from madao.policy.draw import Draw
from madao.policy.learned import Policy
from madao.policy.policy_tables import on_device
from madao.policy.seeded_module import SeededModule


@dataclasses.dataclass(frozen=True, eq=False)
class BaseDraw:
    """A draw of base augmentation for a batch, which can be applied again. Fields are `[B]`.

    Attributes:
        top: First row of the crop in the padded image; for resized crops, a fraction of the height.
        left: First column of the crop in the padded image; for resized crops, a fraction of the width.
        flipped: Whether the image is mirrored, bool.
        hole_y: Row of the hole's centre.
        hole_x: Column of the hole's centre.
        inner: The draw of the policy, if there is one.
        height: Height of a resized crop, a fraction of the image's.
        width: Width of a resized crop, a fraction of the image's.
    """

    top: Tensor
    left: Tensor
    flipped: Tensor
    hole_y: Tensor
    hole_x: Tensor
    inner: Draw | None = None
    height: Tensor | None = None
    width: Tensor | None = None


class BaseAugmentation(SeededModule):
    """A module that crops and flips, applies a policy, normalises, and cuts a hole: the order of the paper.

    In training mode `base(images)` is `base.augment(images, base.sample(images))`, and each image has its own crop,
    flip, policy draw and hole. In evaluation mode (`base.eval()`) it prepares images for validation: the centre of
    `size` pixels, normalised, without flip, policy and hole. `sample` and `augment` work in both modes.

    Images are `[B, C, H, W]`, uint8 or float in [0, 1]; the result is floating point.

    Args:
        padding: Width of the zeros around the image before the crop.
        flip: Whether half of the images are mirrored. Not for digits or text.
        cutout: Side of the square hole, clipped at the image's edge; 0 for none. The hole is zero after normalising,
            which is the mean colour.
        mean: Mean per channel, of images in [0, 1]. If `mean` and `std` are None, values stay in [0, 1].
        std: Standard deviation per channel, of images in [0, 1].
        policy: The policy between flip and normalise, if any.
        seed: Seed of the module's own random numbers.
        size: Side of the result in pixels. By default the image's own height and width.
        scale: Smallest area of a resized crop (Szegedy et al., 2015), as a fraction of the image. It replaces padding:
            a random part of the image is scaled to `size`. Its area lies between `scale` and 1, its aspect ratio
            between 3/4 and 4/3, within the image. 0.08 is usual for photographs.

    Example:
        >>> base = madao.BaseAugmentation(mean=(0.5,), std=(0.25,), policy=madao.Policy())
        >>> loss = F.cross_entropy(model(base(images)), labels)
    """

    random_name = "Standard"

    def __init__(
        self,
        padding: int = 4,
        flip: bool = True,
        cutout: int = 16,
        *,
        mean: Sequence[float] | None = None,
        std: Sequence[float] | None = None,
        policy: AugmentationPolicy | None = None,
        seed: int = 0,
        size: int | None = None,
        scale: float | None = None,
    ) -> None:
        super().__init__(seed)
        if size is not None and (isinstance(size, bool) or not isinstance(size, int) or size < 1):
            raise ValueError(f"size must be a whole number of at least 1, got {size!r}")
        if scale is not None and not 0 < scale <= 1:
            raise ValueError(f"scale is a fraction of the image's area, above 0 and at most 1, got {scale!r}")
        for name, value in (("padding", padding), ("cutout", cutout)):
            if not isinstance(value, int) or value < 0:
                raise ValueError(f"{name} must be a whole number of at least 0, got {value!r}")
        given = mean is not None and std is not None and len(mean) == len(std) > 0 and min(std) > 0
        if not given and not (mean is None and std is None):
            raise ValueError(f"mean and std go together, one each per channel, std above 0; got {mean!r} and {std!r}")
        self.padding, self.flip, self.cutout, self.size, self.scale = padding, flip, cutout, size, scale
        self.mean, self.std = mean, std
        self.policy = policy

    def sample(
        self,
        images: Tensor,
        generator: torch.Generator | None = None,
        relaxed: bool = False,
        *,
        labels: Tensor | None = None,
    ) -> BaseDraw:
        """Draw for a batch, including the draw of the policy.

        Args:
            images: The batch. Only its shape and device matter, unless the policy uses the image.
            generator: Source of randomness. By default the module's own, and the policy's own.
            relaxed: Whether the draw carries gradients to the policy, which has to be a learned one.
            labels: The class of each image, `[B]`, for a policy with classes.
        """
        uses_image = self.policy is not None and self.policy.uses_image
        inner = None if uses_image else self._sample_inner(images, generator, relaxed, labels)
        given, generator = generator, self.generator(images.device) if generator is None else generator

        def whole_numbers(count: int) -> Tensor:
            return torch.randint(0, max(count, 1), images.shape[:1], generator=generator, device=images.device)

        height, width = self._sides(images)
        box = self._resized_box(images, generator)
        if box is None:
            top = whole_numbers(images.shape[2] + 2 * self.padding - height + 1)
            left = whole_numbers(images.shape[3] + 2 * self.padding - width + 1)
        else:
            top, left = box[0], box[1]
        draw = BaseDraw(
            top=top,
            left=left,
            flipped=whole_numbers(2).bool() if self.flip else torch.zeros_like(whole_numbers(1)).bool(),
            hole_y=whole_numbers(height),
            hole_x=whole_numbers(width),
            inner=inner,
            height=None if box is None else box[2],
            width=None if box is None else box[3],
        )
        if not uses_image:
            return draw
        # The policy sees the images it will augment.
        return dataclasses.replace(draw, inner=self._sample_inner(self.before(images, draw), given, relaxed, labels))

    def _sides(self, images: Tensor) -> tuple[int, int]:
        height, width = images.shape[2:]
        if self.size is None:
            return height, width
        if self.size > min(height, width) + 2 * self.padding and self.scale is None:
            raise ValueError(
                f"crops of {self.size} pixels do not fit images of {height} × {width} with padding {self.padding}; "
                "give larger images or a smaller size"
            )
        return self.size, self.size

    def _resized_box(self, images: Tensor, generator: torch.Generator) -> Tensor | None:
        """Draw top, left, height and width of each crop as fractions of the image; None if crops are not resized."""
        if self.scale is None:
            return None
        uniform = torch.rand(4, len(images), generator=generator, device=images.device)
        area = self.scale + (1 - self.scale) * uniform[0]
        # Uniform in the logarithm: 3/4 is as likely as 4/3.
        stretch = torch.exp((2 * uniform[1] - 1) * math.log(4 / 3) / 2)
        sides = (area.sqrt() * torch.stack([1 / stretch, stretch])).clamp(max=1)
        return torch.cat([uniform[2:] * (1 - sides), sides])

    def augment(self, images: Tensor, draw: BaseDraw) -> Tensor:
        """Augment a batch with a draw."""
        check_images(images)
        return self.augment_checked(images, draw)

    def forward(self, images: Tensor, labels: Tensor | None = None) -> Tensor:
        """Augment a batch with a fresh draw, without a gradient to the policy; in evaluation mode crop and normalise.

        Only policies with classes use the labels, `[B]`.
        """
        check_images(images)
        if not self.training:
            return self.normalise(self.centre(images))
        return self.augment_checked(images, self.sample(images, labels=labels))

    def _sample_inner(
        self, images: Tensor, generator: torch.Generator | None, relaxed: bool, labels: Tensor | None
    ) -> Draw | None:
        if relaxed and not isinstance(self.policy, Policy):
            raise ValueError(
                f"a relaxed draw needs a learned policy, BaseAugmentation(policy=Policy()), got {self.policy!r}"
            )
        if self.policy is None:
            return None
        settings = {"relaxed": True} if relaxed else {}
        return self.policy.sample(images, generator, condition=self.policy.condition(images, labels), **settings)

    def augment_checked(self, images: Tensor, draw: BaseDraw) -> Tensor:
        """Augment images that `check_images` has already checked."""
        if len(draw.top) != len(images):
            raise ValueError(f"the draw is for {len(draw.top)} images, but there are {len(images)}")
        if (draw.inner is None) != (self.policy is None):
            raise ValueError("only one of the draw and this BaseAugmentation has a policy; sample from this one")
        images = self.before(images, draw)
        if self.policy is not None and draw.inner is not None:
            # uint8 levels cannot carry a gradient.
            images = normalise(images) if draw.inner.differentiable else images
            images = self.policy.augment_checked(images, draw.inner)
        return self.after(images, draw)

    def before(self, images: Tensor, draw: BaseDraw) -> Tensor:
        """Crop and flip: the steps before the policy."""
        height, width = self._sides(images)
        if draw.height is None or draw.width is None:
            return crop(images, draw.top, draw.left, draw.flipped, self.padding, height, width)
        box = torch.stack([draw.top, draw.left, draw.height, draw.width])
        return resized_crop(images, box, draw.flipped, height, width)

    def before_masks(self, masks: Tensor, draw: BaseDraw, outside: int = IGNORED) -> Tensor:
        """Crop and flip masks `[B, H, W]` of values up to 255 as `before` does their images, to the nearest pixel."""
        planes = masks[:, None]
        height, width = self._sides(planes)
        if draw.height is None or draw.width is None:
            padded = F.pad(planes, [self.padding] * 4, value=outside)
            return crop(padded, draw.top, draw.left, draw.flipped, 0, height, width)[:, 0]
        box = torch.stack([draw.top, draw.left, draw.height, draw.width])
        grid = F.affine_grid(box_matrix(box, draw.flipped), [len(masks), 1, height, width], align_corners=False)
        read = F.grid_sample(planes.float(), grid, mode="nearest", padding_mode="border", align_corners=False)
        return read[:, 0].to(masks.dtype)

    def after(self, images: Tensor, draw: BaseDraw) -> Tensor:
        """Normalise and cut the hole: the steps after the policy."""
        return self.after_policy(images, draw.hole_y, draw.hole_x)

    def after_policy(self, images: Tensor, hole_y: Tensor, hole_x: Tensor) -> Tensor:
        """Do what `after` does, with the holes at these rows and columns."""
        return cut_out(self.normalise(images), hole_y, hole_x, self.cutout)

    def centre(self, images: Tensor) -> Tensor:
        """Crop the centre of `size` pixels from images that are not augmented. A smaller side does not change."""
        height, width = (side if self.size is None else min(self.size, side) for side in images.shape[2:])
        top, left = (images.shape[2] - height) // 2, (images.shape[3] - width) // 2
        return images[:, :, top : top + height, left : left + width]

    def normalise(self, images: Tensor) -> Tensor:
        """Normalise images: with `centre`, the preparation of validation and test images."""
        return normalise(images, self.mean, self.std)

    def extra_repr(self) -> str:
        """Return the settings that `print` shows."""
        names = ("padding", "flip", "cutout", "mean", "std", "size", "scale")
        return ", ".join(f"{name}={getattr(self, name)}" for name in names)


def crop(images: Tensor, top: Tensor, left: Tensor, flipped: Tensor, padding: int, height: int, width: int) -> Tensor:
    """Pad with zeros, crop `height` × `width` at (top, left), and mirror where `flipped`, in one gather."""
    count, channels = images.shape[:2]
    device = images.device
    column = torch.arange(width, device=device).expand(count, width)
    column = left[:, None] + torch.where(flipped[:, None], width - 1 - column, column)
    row = top[:, None] + torch.arange(height, device=device)
    image = torch.arange(count, device=device).reshape(-1, 1, 1, 1)
    channel = torch.arange(channels, device=device).reshape(1, -1, 1, 1)
    return F.pad(images, [padding] * 4)[image, channel, row[:, None, :, None], column[:, None, None, :]]


def resized_crop(images: Tensor, box: Tensor, flipped: Tensor, height: int, width: int) -> Tensor:
    """Scale the part `box` of each image to `height` × `width`, bilinear, mirrored where `flipped`.

    `box` is `[4, B]`: top, left, height and width as fractions of the image.
    """
    values = images.float() if images.dtype == torch.uint8 else images
    matrix = box_matrix(box, flipped).to(values.dtype)
    grid = F.affine_grid(matrix, [len(images), images.shape[1], height, width], align_corners=False)
    result = F.grid_sample(values, grid, mode="bilinear", padding_mode="border", align_corners=False)
    return result.round().clamp(0, 255).to(torch.uint8) if images.dtype == torch.uint8 else result.clamp(0, 1)


def box_matrix(box: Tensor, flipped: Tensor) -> Tensor:
    """Return the matrices from positions in the result of `resized_crop` to the image, both in [−1, 1]: `[B, 2, 3]`."""
    top, left, tall, wide = box
    matrix = box.new_zeros(len(flipped), 2, 3)
    matrix[:, 0, 0] = torch.where(flipped, -wide, wide)
    matrix[:, 1, 1] = tall
    matrix[:, 0, 2] = 2 * left + wide - 1
    matrix[:, 1, 2] = 2 * top + tall - 1
    return matrix


def normalise(images: Tensor, mean: Sequence[float] | None = None, std: Sequence[float] | None = None) -> Tensor:
    """Return (image − mean) / std per channel, of the image in [0, 1]; without them, the image in [0, 1]."""
    values = images / 255 if images.dtype == torch.uint8 else images
    if mean is None or std is None:
        return values
    if len(mean) != images.shape[1]:
        raise ValueError(f"mean and std have {len(mean)} channels, the images {images.shape[1]}")
    centre, spread = (
        on_device(tuple(numbers), values.device, values.dtype).reshape(-1, 1, 1) for numbers in (mean, std)
    )
    return (values - centre) / spread


def check_unnormalised(images: Tensor, name: str) -> None:
    """Raise if float images lie outside [0, 1]: normalising would follow, and come twice. The host waits."""
    check_range(images, name, "load them without normalising, which is left to `transform` and the model")


def cut_out(images: Tensor, y: Tensor, x: Tensor, size: int) -> Tensor:
    """Set a square of side `size` around row y, column x to zero (DeVries & Taylor, 2017)."""

    def inside(centre: Tensor, length: int) -> Tensor:
        offset = torch.arange(length, device=images.device) - centre[:, None] + size // 2
        return (offset >= 0) & (offset < size)

    hole = inside(y, images.shape[2])[:, None, :, None] & inside(x, images.shape[3])[:, None, None, :]
    return images.masked_fill(hole, 0)
