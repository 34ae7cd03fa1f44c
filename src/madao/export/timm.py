"""A policy for timm's training transforms. Needs no timm itself: timm takes any callable on PIL images."""

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
"""What stands before the policy in the transforms timm builds, by name."""

_BUILT_IN = ("RandAugment", "AutoAugment", "AugMixAugment")


class PolicyTransform:
    """Augments PIL images of mode L or RGB: `image = transform(image)`, as timm's `RandAugment` does.

    Draws come from torch's global generator, so `torch.manual_seed` repeats them and workers of a `DataLoader` differ.

    Args:
        policy: A `PolicySpec`, a policy, or the path of a policy.json.
    """

    def __init__(self, policy: Any) -> None:
        self.policy = ImageAugmenter(without_classes(policy, "timm"))

    def sample(self, img: PIL.Image.Image | None = None) -> Steps:
        """A draw for one image, one step a stage; by what it shows where the policy looks at it."""
        return self.policy.sample(image=img)

    def __call__(self, img: PIL.Image.Image) -> PIL.Image.Image:
        """Augment an image by a fresh draw."""
        return self.policy.apply_pil(img, self.sample(img))

    def __repr__(self) -> str:
        lines = "".join(f"\n\t{line}" for line in str(self.policy.spec).splitlines())
        return f"{type(self).__name__}(n={len(self.policy.spec.stages)}, ops={lines})"


def insert(transform: PolicyTransform, into: Any) -> Any:
    """Put a policy into what `timm.data.create_transform(..., is_training=True)` returned, and return that.

    It stands where timm's own RandAugment would: behind crop and flip, before colour jitter and the conversion to a
    tensor. timm leaves colour jitter out where it augments by a policy: give it `auto_augment=None, color_jitter=None`.

    Args:
        transform: The policy.
        into: A `Compose`, changed in place, or the three of `separate=True`.
    """
    if isinstance(into, tuple | list):
        if len(into) != 3:
            raise ValueError(f"expected a Compose or the three of separate=True, got {len(into)}")
        into[1].transforms.insert(0, transform)
        return into
    steps = getattr(into, "transforms", None)
    if not isinstance(steps, list):
        raise TypeError(f"expected what timm.data.create_transform returns, a Compose, got {type(into).__name__}")
    names = [type(step).__name__ for step in steps]
    for name in names:
        if name in _BUILT_IN:
            raise ValueError(f"there is a {name} already; call timm.data.create_transform with auto_augment=None")
    position = next((i for i, name in enumerate(names) if name not in _GEOMETRIC), len(names))
    steps.insert(position, transform)
    return into
