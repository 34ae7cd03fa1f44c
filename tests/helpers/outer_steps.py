"""A small network, two batches and a `PolicyOptimizer` for tests of outer steps."""

import dataclasses
from typing import Any

import torch
from torch import Tensor, nn

from madao import Policy
from madao.outer import ComputeOptions, OuterStep, PolicyOptimizer

_GENERATOR = torch.Generator().manual_seed(0)
TRAIN = torch.rand(24, 1, 8, 8, generator=_GENERATOR), torch.randint(0, 3, (24,), generator=_GENERATOR)
VALIDATION = torch.rand(16, 1, 8, 8, generator=_GENERATOR), torch.randint(0, 3, (16,), generator=_GENERATOR)

_COMPUTE = {field.name for field in dataclasses.fields(ComputeOptions)}


def network(dropout: float = 0.2) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 6, 3), nn.BatchNorm2d(6), nn.ReLU(), nn.Dropout(dropout), nn.Flatten(), nn.Linear(216, 3)
    )


def smooth_network() -> nn.Sequential:
    """A network without dropout and BatchNorm, whose examples do not depend on each other."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(1, 6, 3), nn.Tanh(), nn.Flatten(), nn.Linear(216, 3))


def policy_optimizer(policy: Policy, model: nn.Module, **settings: Any) -> PolicyOptimizer:
    """Build a `PolicyOptimizer` for every step, with those of `ComputeOptions` among the settings."""
    compute = ComputeOptions(**{name: settings.pop(name) for name in _COMPUTE & settings.keys()})
    return PolicyOptimizer(policy, model, **{"every": 1, **settings}, compute=compute)


def build(**settings: Any) -> PolicyOptimizer:
    return policy_optimizer(Policy(), network(), **settings)


def descent(policy: Policy, lr: float = 1.0) -> torch.optim.Optimizer:
    """Plain gradient descent: the policy moves by −lr times the gradient."""
    return torch.optim.SGD(policy.parameters(), lr=lr)


def run(outer: PolicyOptimizer, calls: int) -> list[OuterStep]:
    """Call `step` and return the outer steps."""
    steps = [outer.step(TRAIN, VALIDATION) for _ in range(calls)]
    return [step for step in steps if step is not None]


def flat(policy: nn.Module) -> Tensor:
    """All parameters in one vector, copied."""
    return torch.cat([parameter.detach().flatten() for parameter in policy.parameters()])
