"""Policies with known behaviour, and the values of their draws."""

import dataclasses
import math
from typing import TypeVar

import torch
from torch import Tensor, nn

from madao import ClassPolicy, Draw, ImagePolicy, Policy
from madao.policy.base_augmentation import BaseDraw

M = TypeVar("M", bound=nn.Module)


def seeded(seed: int = 7) -> torch.Generator:
    """Return a generator with a seed."""
    return torch.Generator().manual_seed(seed)


def scattered(policy: M, spread: float = 1.5, seed: int = 1) -> M:
    """Add normal noise to every parameter of a policy, and return the policy."""
    generator = seeded(seed)
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.add_(spread * torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype))
    return policy


def fields(draw: Draw | BaseDraw) -> list[Tensor]:
    """Return the tensors of a draw, without those that are None."""
    values = (getattr(draw, field.name) for field in dataclasses.fields(draw))
    return [value for value in values if value is not None]


def equal(one: nn.Module, other: nn.Module) -> bool:
    """Return whether two modules have the same parameters to the bit."""
    return all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))


def logits_of(policy: Policy, kind: str, condition: Tensor) -> Tensor:
    """Compute the logits `[stages, images, operations]` of a conditional policy by their definition."""
    shared = policy.get_parameter(f"{kind}_logits")[:, None]
    if isinstance(policy, ClassPolicy):
        return shared + policy.get_parameter(f"{kind}_deviations")[:, condition]
    centre, scale, weights, bias, offset = map(policy.get_buffer, ("centre", "scale", "weights", "bias", "offset"))
    inputs = (condition.to(weights) - centre) / scale / math.sqrt(len(centre))
    hidden = (inputs @ weights.T + bias).tanh() - offset
    return shared + hidden @ policy.get_parameter(f"{kind}_outputs") / math.sqrt(len(bias))


def inverting_dark() -> ImagePolicy:
    """Return a policy that always inverts dark images and never light ones, by one unit that reads the mean of red."""
    policy = ImagePolicy(1, 1, operations=["Invert", "Equalize"])
    with torch.no_grad():
        policy.get_buffer("weights").zero_()[0, 0] = -1e4
        policy.get_buffer("bias").zero_()
        policy.get_buffer("offset").zero_()
        policy.selection_logits[:, 0] = 50
        policy.application_logits.zero_()
        policy.get_parameter("application_outputs").fill_(60)
    return policy


def inverting_class(inverted: int, classes: int) -> ClassPolicy:
    """Return a policy that always inverts images of one class and never others."""
    policy = ClassPolicy(classes, 1, operations=["Invert", "Equalize"])
    with torch.no_grad():
        policy.selection_logits[:, 0] = 50
        policy.get_parameter("application_deviations").fill_(-50)[:, inverted] = 50
    return policy
