"""Learn an image model's data augmentation policy while the model trains."""

from madao import ops
from madao.policy import (
    AutoAugment,
    Draw,
    Policy,
    PolicySpec,
    RandAugment,
    Standard,
    TrivialAugment,
    Uniform,
    load_policy,
)

__version__ = "0.1.0"

__all__ = [
    "AutoAugment",
    "Draw",
    "Policy",
    "PolicySpec",
    "RandAugment",
    "Standard",
    "TrivialAugment",
    "Uniform",
    "load_policy",
    "ops",
]
