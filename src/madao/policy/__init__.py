"""Policies: laws that give each image of a batch its operations, strengths and signs."""

from madao.policy.autoaugment import AutoAugment
from madao.policy.base import AugmentationPolicy
from madao.policy.conditional import ClassPolicy
from madao.policy.draw import Draw
from madao.policy.fixed import FrozenPolicy, RandAugment, TrivialAugment, Uniform
from madao.policy.learned import Policy
from madao.policy.looking import ImagePolicy
from madao.policy.named import load_policy
from madao.policy.spec import Entry, PolicySpec
from madao.policy.specfile import PolicyFileError
from madao.policy.standard import Standard, StandardDraw

__all__ = [
    "AugmentationPolicy",
    "AutoAugment",
    "ClassPolicy",
    "Draw",
    "Entry",
    "FrozenPolicy",
    "ImagePolicy",
    "Policy",
    "PolicyFileError",
    "PolicySpec",
    "RandAugment",
    "Standard",
    "StandardDraw",
    "TrivialAugment",
    "Uniform",
    "load_policy",
]
