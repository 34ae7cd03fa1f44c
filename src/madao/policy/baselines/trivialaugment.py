"""TrivialAugment (Müller & Hutter, 2021)."""

import torch
from torch import Tensor

from madao.ops import PAPER, choose
from madao.ops.geometric import Fill
from madao.policy import sampling
from madao.policy.base import AugmentationPolicy
from madao.policy.draw import Draw
from madao.policy.policy_tables import on_device

_ENHANCED = ("Color", "Contrast", "Brightness", "Sharpness")
_LIMITS = {
    "wide": {"ShearX": 0.99, "ShearY": 0.99, "Rotate": 135, "Posterize": 2, **dict.fromkeys(_ENHANCED, 1.99)},
    "normal": dict.fromkeys(_ENHANCED, 1.9),
}
_PIXELS = {"wide": 32, "normal": 10}
"""The longest translation, at every image size."""


class TrivialAugment(AugmentationPolicy):
    """One operation per image, equally likely, at a magnitude drawn evenly from 31 levels.

    The choices are the paper's operations without `Invert`, and the identity. A draw of the identity is an operation
    that is not applied. The space is `"wide"` (rotation to 135°, translation to 32 pixels, …) or `"normal"` (30°, 10
    pixels, …). Other arguments are those of `Policy`.
    """

    levels = 31

    def __init__(self, space: str = "wide", fill: Fill = 0.0, seed: int = 0) -> None:
        if space not in _LIMITS:
            raise ValueError(f"space must be 'wide' or 'normal', got {space!r}")
        # Translation to whole sides here; `sample` scales it to pixels when it knows the image.
        limits = {**_LIMITS[space], "TranslateX": 1.0, "TranslateY": 1.0}
        super().__init__(choose(PAPER, limits, exclude=["Invert"]), 1, fill, seed)
        self.space = space

    def sample(
        self, images: Tensor, generator: torch.Generator | None = None, *, condition: Tensor | None = None
    ) -> Draw:
        """Draw for a batch."""
        device = images.device
        generator = self.generator(device) if generator is None else generator
        shape, count = (1, len(images)), len(self.operations)
        outcome = torch.randint(0, count + 1, shape, generator=generator, device=device)
        level = torch.randint(0, self.levels, shape, generator=generator, device=device) / (self.levels - 1)
        choice = outcome.clamp(max=count - 1)
        return Draw(
            choice=choice,
            applied=outcome < count,
            magnitude=(level * self._scale(images)[choice]).clamp(max=1),
            sign=sampling.fair_signs(shape, generator),
        )

    def _scale(self, images: Tensor) -> Tensor:
        """Return μ of the strongest level for each operation: 1, but for translation its pixels per side."""
        height, width = (max(side, 1) for side in images.shape[2:])
        part = {"TranslateX": _PIXELS[self.space] / width, "TranslateY": _PIXELS[self.space] / height}
        return on_device(tuple(part.get(operation.name, 1.0) for operation in self.operations), images.device)
