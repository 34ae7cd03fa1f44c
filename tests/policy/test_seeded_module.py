"""A module's own random numbers: seeded, saved and taken up again."""

import hashlib

import pytest
import torch

from madao import BaseAugmentation, ClassPolicy, ImagePolicy, Policy, RandAugment, TrivialAugment, Uniform
from madao.policy.seeded_module import SeededModule


def test_a_state_goes_on_on_another_device_of_its_kind() -> None:
    """As where the first process of several, on cuda:0, saved it, and the second goes on on cuda:1."""
    first = Policy(seed=3)
    first.generator("cpu:0").manual_seed(77)
    state = first.get_extra_state()
    assert list(state["generators"]) == ["cpu:0"]
    second = Policy(seed=3)
    second.set_extra_state(state)
    assert second.get_extra_state()["generators"].keys() == {"cpu:0"}  # also before it is used
    expected = torch.rand(4, generator=torch.Generator().manual_seed(77))
    assert torch.equal(torch.rand(4, generator=second.generator("cpu")), expected)


MODULES: list[SeededModule] = [Policy(seed=3), ClassPolicy(2, seed=3), ImagePolicy(seed=3), Uniform(seed=3)]
MODULES += [RandAugment(seed=3), TrivialAugment(seed=3), BaseAugmentation(seed=3)]


@pytest.mark.parametrize("module", MODULES)
def test_draws_are_those_of_version_0_1(module: SeededModule) -> None:
    name = type(module).__name__.replace("BaseAugmentation", "Standard")
    digest = hashlib.sha256(f"{name} 3 ".encode()).digest()
    assert module.generator().initial_seed() == int.from_bytes(digest[:8], "big") >> 1
