"""Batches and a small policy optimizer for conditional policies."""

from typing import Any

import torch
from torch import nn

from madao import Policy, PolicyOptimizer

_GENERATOR = torch.Generator().manual_seed(0)
TRAIN = torch.rand(24, 1, 8, 8, generator=_GENERATOR), torch.arange(24) % 3
"""Images without any of the last of four classes."""
VALIDATION = torch.rand(16, 1, 8, 8, generator=_GENERATOR), torch.randint(0, 3, (16,), generator=_GENERATOR)


def build(policy: Policy, **changes: Any) -> PolicyOptimizer:
    """An optimizer that takes an outer step at every call, by plain SGD."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(1, 6, 3), nn.BatchNorm2d(6), nn.ReLU(), nn.Dropout(0.2), nn.Flatten(), nn.Linear(216, 3)
    )
    descent = torch.optim.SGD(policy.parameters(), lr=1.0)
    return PolicyOptimizer(policy, model, every=1, optimizer=descent, **changes)
