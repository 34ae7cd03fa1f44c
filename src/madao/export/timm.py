"""A policy for timm's training transforms, which accept any callable on PIL images. timm is not imported."""

from typing import Any

import PIL.Image

from madao.export.single_image import ImageAugmenter, Steps, without_classes

_GEOMETRIC = (
    "RandomResizedCropAndInterpolation",
    "RandomResizedCropToSequence",
    "ResizeToSequence",
    "ResizeKeepRatio",
    "CenterCropOrPad",
    "RandomCropOrPad",
    "TrimBorder",
    "Resize",
    "CenterCrop",
    "RandomCrop",
    "RandomResizedCrop",
    "RandomHorizontalFlip",
    "RandomVerticalFlip",
)
"""Names of the transforms that timm puts before its policy."""

_BUILT_IN = ("RandAugment", "AutoAugment", "AugMixAugment")


class PolicyTransform:
    """A transform that augments PIL images of mode L or RGB: `image = transform(image)`, like timm's `RandAugment`.

    `policy` is a `PolicySpec`, a policy, or the path of a policy.json. Draws come from torch's global generator:
    `torch.manual_seed` repeats them, and workers of a `DataLoader` differ.
    """

    def __init__(self, policy: Any) -> None:
        self.policy = ImageAugmenter(without_classes(policy, "timm"))

    def sample(self, img: PIL.Image.Image | None = None) -> Steps:
        """Draw for one image, one step per stage. The image matters only to policies that depend on it."""
        return self.policy.sample(image=img)

    def __call__(self, img: PIL.Image.Image) -> PIL.Image.Image:
        """Augment an image with a fresh draw."""
        return self.policy.apply_pil(img, self.sample(img))

    def __repr__(self) -> str:
        lines = "".join(f"\n\t{line}" for line in str(self.policy.spec).splitlines())
        return f"{type(self).__name__}(n={len(self.policy.spec.stages)}, ops={lines})"


def insert(transform: PolicyTransform, into: Any) -> Any:
    """Insert a policy into the result of `timm.data.create_transform(..., is_training=True)`, and return that.

    The policy takes the place of timm's RandAugment: after crop and flip, before colour jitter and the conversion to a
    tensor. With its own policy, timm leaves colour jitter out. Do the same: `create_transform(..., auto_augment=None,
    color_jitter=None)`. `into` is a `Compose`, changed in place, or the three transforms of `separate=True`.
    """
    if isinstance(into, tuple | list):
        if len(into) != 3:
            raise ValueError(f"expected a Compose or the three transforms of separate=True, got {len(into)}")
        into[1].transforms.insert(0, transform)
        return into
    steps = getattr(into, "transforms", None)
    if not isinstance(steps, list):
        raise TypeError(f"expected the Compose that timm.data.create_transform returns, got {type(into).__name__}")
    names = [type(step).__name__ for step in steps]
    for name in names:
        if name in _BUILT_IN:
            raise ValueError(f"there is a {name} already; call timm.data.create_transform with auto_augment=None")
    position = next((i for i, name in enumerate(names) if name not in _GEOMETRIC), len(names))
    steps.insert(position, transform)
    return into
