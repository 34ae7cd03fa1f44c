"""A seed gives the draws of version 0.1, whatever a class is called today."""

import hashlib

import pytest

from madao import BaseAugmentation, ClassPolicy, ImagePolicy, Policy, RandAugment, TrivialAugment, Uniform
from madao.policy.seeded_module import SeededModule


@pytest.mark.parametrize(
    ("module", "name"),
    [
        (BaseAugmentation(seed=3), "Standard"),
        (Policy(seed=3), "Policy"),
        (ClassPolicy(2, seed=3), "ClassPolicy"),
        (ImagePolicy(seed=3), "ImagePolicy"),
        (Uniform(seed=3), "Uniform"),
        (RandAugment(seed=3), "RandAugment"),
        (TrivialAugment(seed=3), "TrivialAugment"),
    ],
)
def test_draws_are_those_of_the_first_version(module: SeededModule, name: str) -> None:
    digest = hashlib.sha256(f"{name} 3 ".encode()).digest()
    assert module.generator().initial_seed() == int.from_bytes(digest[:8], "big") >> 1
