"""The Gaussian prior on how classes or images deviate from the shared part."""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

SHRINKAGE = 0.1
"""Default strength of the prior, λ."""


def add_prior(
    policy: nn.Module, gradients: Mapping[str, Tensor], ending: str, shrinkage: float
) -> Mapping[str, Tensor]:
    """Return ∂g/∂δ + λ r δ for parameters δ with this ending of their names, r the root mean square of ∂g/∂δ."""

    def pulled(name: str, gradient: Tensor) -> Tensor:
        deviation = policy.get_parameter(name).detach()
        return torch.add(gradient, deviation * gradient.square().mean().sqrt(), alpha=shrinkage)

    return {name: pulled(name, grad) if name.endswith(ending) else grad for name, grad in gradients.items()}
