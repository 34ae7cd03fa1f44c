"""Policies: laws that give each image of a batch its operations, strengths and signs."""

from madao.errors import PolicyFileError
from madao.policy.base import AugmentationPolicy
from madao.policy.base_augmentation import BaseAugmentation, BaseDraw
from madao.policy.baselines.autoaugment import AutoAugment
from madao.policy.baselines.fixed import FrozenPolicy, RandAugment, TrivialAugment, Uniform
from madao.policy.conditional.class_conditional import ClassPolicy
from madao.policy.conditional.image_conditional import ImagePolicy
from madao.policy.draw import Draw
from madao.policy.learned import Policy
from madao.policy.registry import load_policy
from madao.policy.spec import OperationParams, PolicySpec

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
