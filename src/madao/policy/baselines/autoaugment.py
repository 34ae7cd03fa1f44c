"""AutoAugment's published policies (Cubuk et al., 2019), as data."""

import torch
from torch import Tensor

from madao.ops import PAPER, choose
from madao.ops.geometric import Fill
from madao.policy import sampling
from madao.policy.base import AugmentationPolicy
from madao.policy.draw import Draw
from madao.text import nearest

_STRONGEST_LEVEL = 9
# The ranges of AutoAugment's search, if they differ from the paper's.
_LIMITS = {
    "TranslateX": 150 / 331,
    "TranslateY": 150 / 331,
    **dict.fromkeys(("Color", "Contrast", "Brightness", "Sharpness"), 1.9),
}

# Each line is a sub-policy: two operations, each with its probability and, if it has a magnitude, a level from 0 to 9.
PUBLISHED = {
    "cifar10": """
        Invert 0.1, Contrast 0.2 6
        Rotate 0.7 2, TranslateX 0.3 9
        Sharpness 0.8 1, Sharpness 0.9 3
        ShearY 0.5 8, TranslateY 0.7 9
        AutoContrast 0.5, Equalize 0.9
        ShearY 0.2 7, Posterize 0.3 7
        Color 0.4 3, Brightness 0.6 7
        Sharpness 0.3 9, Brightness 0.7 9
        Equalize 0.6, Equalize 0.5
        Contrast 0.6 7, Sharpness 0.6 5
        Color 0.7 7, TranslateX 0.5 8
        Equalize 0.3, AutoContrast 0.4
        TranslateY 0.4 3, Sharpness 0.2 6
        Brightness 0.9 6, Color 0.2 8
        Solarize 0.5 2, Invert 0
        Equalize 0.2, AutoContrast 0.6
        Equalize 0.2, Equalize 0.6
        Color 0.9 9, Equalize 0.6
        AutoContrast 0.8, Solarize 0.2 8
        Brightness 0.1 3, Color 0.7 0
        Solarize 0.4 5, AutoContrast 0.9
        TranslateY 0.9 9, TranslateY 0.7 9
        AutoContrast 0.9, Solarize 0.8 3
        Equalize 0.8, Invert 0.1
        TranslateY 0.7 9, AutoContrast 0.9
    """,
    "svhn": """
        ShearX 0.9 4, Invert 0.2
        ShearY 0.9 8, Invert 0.7
        Equalize 0.6, Solarize 0.6 6
        Invert 0.9, Equalize 0.6
        Equalize 0.6, Rotate 0.9 3
        ShearX 0.9 4, AutoContrast 0.8
        ShearY 0.9 8, Invert 0.4
        ShearY 0.9 5, Solarize 0.2 6
        Invert 0.9, AutoContrast 0.8
        Equalize 0.6, Rotate 0.9 3
        ShearX 0.9 4, Solarize 0.3 3
        ShearY 0.8 8, Invert 0.7
        Equalize 0.9, TranslateY 0.6 6
        Invert 0.9, Equalize 0.6
        Contrast 0.3 3, Rotate 0.8 4
        Invert 0.8, TranslateY 0 2
        ShearY 0.7 6, Solarize 0.4 8
        Invert 0.6, Rotate 0.8 4
        ShearY 0.3 7, TranslateX 0.9 3
        ShearX 0.1 6, Invert 0.6
        Solarize 0.7 2, TranslateY 0.6 7
        ShearY 0.8 4, Invert 0.8
        ShearX 0.7 9, TranslateY 0.8 3
        ShearY 0.8 5, AutoContrast 0.7
        ShearX 0.7 2, Invert 0.1
    """,
    "imagenet": """
        Posterize 0.4 8, Rotate 0.6 9
        Solarize 0.6 5, AutoContrast 0.6
        Equalize 0.8, Equalize 0.6
        Posterize 0.6 7, Posterize 0.6 6
        Equalize 0.4, Solarize 0.2 4
        Equalize 0.4, Rotate 0.8 8
        Solarize 0.6 3, Equalize 0.6
        Posterize 0.8 5, Equalize 1
        Rotate 0.2 3, Solarize 0.6 8
        Equalize 0.6, Posterize 0.4 6
        Rotate 0.8 8, Color 0.4 0
        Rotate 0.4 9, Equalize 0.6
        Equalize 0, Equalize 0.8
        Invert 0.6, Equalize 1
        Color 0.6 4, Contrast 1 8
        Rotate 0.8 8, Color 1 2
        Color 0.8 8, Solarize 0.8 7
        Sharpness 0.4 7, Invert 0.6
        ShearX 0.6 5, Equalize 1
        Color 0.4 0, Equalize 0.6
        Equalize 0.4, Solarize 0.2 4
        Solarize 0.6 5, AutoContrast 0.6
        Invert 0.6, Equalize 1
        Color 0.6 4, Contrast 1 8
        Equalize 0.8, Equalize 0.6
    """,
}


class AutoAugment(AugmentationPolicy):
    """One of 25 published sub-policies per image, equally likely: two operations, each with probability and level.

    They are those for `"cifar10"`, `"svhn"` or `"imagenet"`. Other arguments are those of `Policy`. Levels mean the
    same as in torchvision: level 9 is the strongest of the range, 0 the identity (`Posterize` keeps 8 to 4 bits). Only
    `Solarize` at level 0 differs: the identity here, while torchvision inverts pixels of level 255.
    """

    def __init__(self, policy: str = "cifar10", fill: Fill = 0.0, seed: int = 0) -> None:
        if policy not in PUBLISHED:
            raise ValueError(f"no published AutoAugment policy {nearest(policy, PUBLISHED)}")
        super().__init__(choose(PAPER, _LIMITS), 2, fill, seed)
        self.policy = policy
        index = {operation.name: i for i, operation in enumerate(self.operations)}
        table = [[_read(step, index) for step in line.split(", ")] for line in PUBLISHED[policy].strip().splitlines()]
        # [3, sub-policies, stages] → one [K, sub-policies] table per quantity.
        choice, probability, magnitude = torch.tensor(table, dtype=torch.float64).permute(2, 1, 0)
        self.register_buffer("_choice", choice.long(), persistent=False)
        self.register_buffer("_probability", probability.float(), persistent=False)
        self.register_buffer("_magnitude", magnitude.float(), persistent=False)

    def sample(
        self, images: Tensor, generator: torch.Generator | None = None, *, condition: Tensor | None = None
    ) -> Draw:
        """Draw for a batch. Both stages of an image come from the same sub-policy."""
        device = images.device
        generator = self.generator(device) if generator is None else generator
        shape = (2, len(images))
        tables = [self.get_buffer(name).to(device) for name in ("_choice", "_probability", "_magnitude")]
        sub_policy = torch.randint(0, tables[0].shape[1], shape[1:], generator=generator, device=device)
        choice, probability, magnitude = (table[:, sub_policy] for table in tables)
        uniform = torch.rand(shape, generator=generator, device=device)
        return Draw(choice, uniform < probability, magnitude, sampling.fair_signs(shape, generator))


def _read(step: str, index: dict[str, int]) -> tuple[float, float, float]:
    name, probability, *level = step.split()
    return index[name], float(probability), float(level[0]) / _STRONGEST_LEVEL if level else 0.0
