"""Learn an image model's data augmentation policy while the model trains."""

from madao import hypergrad, ops
from madao.policy import (
    AutoAugment,
    ClassPolicy,
    Draw,
    ImagePolicy,
    Policy,
    PolicySpec,
    RandAugment,
    Standard,
    TrivialAugment,
    Uniform,
    load_policy,
)
from madao.training import PolicyOptimizer

__version__ = "0.1.0"

__all__ = [
    "AutoAugment",
    "ClassPolicy",
    "Draw",
    "ImagePolicy",
    "Policy",
    "PolicyOptimizer",
    "PolicySpec",
    "RandAugment",
    "Standard",
    "TrivialAugment",
    "Uniform",
    "hypergrad",
    "load_policy",
    "ops",
]
