"""Policies: modules that give each image of a batch its own operations, magnitudes and signs."""

from madao.errors import PolicyFileError
from madao.policy.base import AugmentationPolicy
from madao.policy.base_augmentation import BaseAugmentation, BaseDraw
from madao.policy.baselines.autoaugment import AutoAugment
from madao.policy.baselines.randaugment import RandAugment
from madao.policy.baselines.trivialaugment import TrivialAugment
from madao.policy.baselines.uniform import Uniform
from madao.policy.conditional.class_conditional import ClassPolicy
from madao.policy.conditional.image_conditional import ImagePolicy
from madao.policy.draw import Draw
from madao.policy.frozen import FrozenPolicy
from madao.policy.learned import Policy
from madao.policy.registry import load_policy
from madao.policy.spec import PolicySpec
from madao.policy.stages import OperationParams

__all__ = [
    "AugmentationPolicy",
    "AutoAugment",
    "BaseAugmentation",
    "BaseDraw",
    "ClassPolicy",
    "Draw",
    "FrozenPolicy",
    "ImagePolicy",
    "OperationParams",
    "Policy",
    "PolicyFileError",
    "PolicySpec",
    "RandAugment",
    "TrivialAugment",
    "Uniform",
    "load_policy",
]
