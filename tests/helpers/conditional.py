"""A batch and a small policy optimizer for conditional policies."""

from typing import Any

import torch

from madao import Policy, PolicyOptimizer
from tests.helpers.outer_steps import descent, network, policy_optimizer

GENERATOR = torch.Generator().manual_seed(0)
# No image of the last of four classes.
TRAIN = torch.rand(24, 1, 8, 8, generator=GENERATOR), torch.arange(24) % 3


def build(policy: Policy, **changes: Any) -> PolicyOptimizer:
    """An optimizer that takes an outer step at every call, by plain SGD."""
    return policy_optimizer(policy, network(), optimizer=descent(policy), **changes)
