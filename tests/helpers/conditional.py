"""A batch and a small policy optimizer for conditional policies."""

from typing import Any

import torch

from madao import Policy, PolicyOptimizer
from tests.outer.test_policy_optimizer import network

GENERATOR = torch.Generator().manual_seed(0)
# No image of the last of four classes.
TRAIN = torch.rand(24, 1, 8, 8, generator=GENERATOR), torch.arange(24) % 3


def build(policy: Policy, **changes: Any) -> PolicyOptimizer:
    """An optimizer that takes an outer step at every call, by plain SGD."""
    descent = torch.optim.SGD(policy.parameters(), lr=1.0)
    return PolicyOptimizer(policy, network(), every=1, optimizer=descent, **changes)
