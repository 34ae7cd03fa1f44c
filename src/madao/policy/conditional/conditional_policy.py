"""The common part of policies that depend on the class or on the image."""

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from madao.policy.learned import Policy
from madao.policy.stages import OperationParams

KINDS = OperationParams.KINDS
SHRINKAGE = 0.1
"""Default strength of the prior, λ."""


class ConditionalPolicy(Policy):
    """A `Policy` with parameters δ, which move the logits of classes or images away from those that all share.

    They have a Gaussian prior, and are `count` rows for each stage.
    """

    deviations: ClassVar[str]
    """The ending of the names of δ."""

    def __init__(self, stages: int, count: int, shrinkage: float, **settings: Any) -> None:
        super().__init__(stages, **settings)
        if not shrinkage >= 0:
            raise ValueError(f"shrinkage must be at least 0, got {shrinkage!r}")
        self.shrinkage = shrinkage
        for kind, shared in zip(KINDS, self._shared(), strict=True):
            deviations = torch.zeros(stages, count, shared.shape[-1])
            self.register_parameter(f"{kind}_{self.deviations}", nn.Parameter(deviations))

    def with_prior(self, gradients: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """Return the gradients with ∂g/∂δ + λ r δ for each δ, r the root mean square of ∂g/∂δ."""

        def pulled(name: str, gradient: Tensor) -> Tensor:
            deviation = self.get_parameter(name).detach()
            return torch.add(gradient, deviation * gradient.square().mean().sqrt(), alpha=self.shrinkage)

        names = {f"{kind}_{self.deviations}" for kind in KINDS}
        return {name: pulled(name, grad) if name in names else grad for name, grad in gradients.items()}

    def _deviations(self) -> list[nn.Parameter]:
        return [self.get_parameter(f"{kind}_{self.deviations}") for kind in KINDS]

    def extra_repr(self) -> str:
        """Return the settings that `print` shows."""
        return f"{super().extra_repr()}, shrinkage={self.shrinkage}"
