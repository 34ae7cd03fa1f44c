"""A policy for each class: what classes have in common, and how each departs from it."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from madao.policy.learned import Policy, settings_of
from madao.policy.policy_tables import PolicyTables, rows_of_labels
from madao.policy.spec import PolicySpec, rounded_stages

SHRINKAGE = 0.1

_KINDS = ("selection", "application", "magnitude")


def pulled(policy: Policy, gradients: Mapping[str, Tensor], ending: str, strength: float) -> Mapping[str, Tensor]:
    """∂g/∂δ + λ r δ for the parameters δ whose names have an ending, r the root mean square of ∂g/∂δ."""
    return {
        name: torch.add(gradient, policy.get_parameter(name).detach() * gradient.square().mean().sqrt(), alpha=strength)
        if name.endswith(ending)
        else gradient
        for name, gradient in gradients.items()
    }


class ClassPolicy(Policy):
    """`Policy` whose logits depend on the image's class: those of class c are φ + δ_c, φ shared and δ_c its own.

    The law is that of `Policy`; with δ = 0 the draws are its draws. `policy(images, labels)` augments a batch, and
    `selection`, `application` and `magnitude` are those of the shared part.

    A class has few images, and its gradient little signal. So deviations have a prior, δ ~ N(0, 1 / (λ r)) each, which
    adds ½ λ r Σ δ² to the validation loss and the closed form λ r δ to ∂g/∂δ. r is the root mean square of ∂g/∂δ
    over all classes at that step, since the scale of ∂g/∂φ is that of solver and loss: at δ = 1/λ the prior pulls
    as hard as a typical gradient pushes, and harder than that of a class of few images, which is shorter. Where both
    gradients vanish so does Σ_c δ_c, as ∂g/∂φ = Σ_c ∂g/∂δ_c: φ is then the mean of the classes' logits.

    Args:
        classes: Names of the classes, in the order of labels, or their number.
        stages: How many operations in a row, K.
        shrinkage: λ, 0 for none.
        **settings: Those of `Policy`: `operations`, `limits`, `without`, `fill`, `temperature`,
            `application_temperature`, `magnitude_jitter`, `init_magnitude`, `seed`.
    """

    def __init__(
        self, classes: int | Sequence[str], stages: int = 2, shrinkage: float = SHRINKAGE, **settings: Any
    ) -> None:
        super().__init__(stages, **settings)
        self.classes = tuple(str(number) for number in range(classes)) if isinstance(classes, int) else tuple(classes)
        if len(self.classes) < 2 or len(set(self.classes)) < len(self.classes):
            raise ValueError(f"classes must be two or more, each with its own name, got {classes!r}")
        if not shrinkage >= 0:
            raise ValueError(f"shrinkage must be at least 0, got {shrinkage!r}")
        self.shrinkage = shrinkage
        for kind in _KINDS:
            shared = self.get_parameter(f"{kind}_logits")
            deviations = torch.zeros(stages, len(self.classes), shared.shape[1])
            self.register_parameter(f"{kind}_deviations", nn.Parameter(deviations))

    @property
    def class_selection(self) -> Tensor:
        """π of each class, `[K, C, n]`."""
        return self._tables()[0].softmax(-1)

    def with_prior(self, gradients: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """∂g/∂δ + λ r δ for the deviations that learn; the shared part has no prior."""
        return pulled(self, gradients, "_deviations", self.shrinkage)

    def spec(self) -> PolicySpec:
        """The policy as it is now: what classes share, and the law of each."""
        selection, application, magnitude = self._tables()
        tables = selection.softmax(-1), application.sigmoid(), self._spread(magnitude.sigmoid())
        each = zip(*(table.unbind(1) for table in tables), strict=True)
        stages = tuple(rounded_stages(self.operations, *numbers) for numbers in each)
        return dataclasses.replace(super().spec(), classes=self.classes, class_stages=stages)

    @classmethod
    def from_spec(cls, spec: PolicySpec, **settings: Any) -> "ClassPolicy":
        """A policy that starts where a spec with classes stands and goes on learning.

        Args:
            spec: Stages, operations, fill, variation, classes and numbers.
            **settings: What a spec does not hold: `shrinkage`, `temperature`, `application_temperature`, `seed`.
        """
        policy = cls(spec.classes, len(spec.stages), **settings_of(spec), **settings)
        policy._start_at(spec)
        return policy

    def _start_at(self, spec: PolicySpec) -> None:
        super()._start_at(spec)
        each = self._logits_of(spec.tables())
        with torch.no_grad():
            for kind, logits in zip(_KINDS, each, strict=True):
                shared = self.get_parameter(f"{kind}_logits").unsqueeze(1)
                self.get_parameter(f"{kind}_deviations").copy_(logits - shared)

    def _tables(self) -> tuple[Tensor, Tensor, Tensor]:
        """The logits of each class, `[K, C, n]`."""
        selection, application, magnitude = (
            shared + self.get_parameter(f"{kind}_deviations")
            for kind, shared in zip(_KINDS, self._shared(), strict=True)
        )
        return selection, application, magnitude

    def _law(self, condition: Tensor | None, count: int) -> PolicyTables:
        which = rows_of_labels(condition, count, self.classes)
        selection, application, magnitude = self._tables()
        return PolicyTables(selection, application, self._spread(magnitude.sigmoid()), which)

    def extra_repr(self) -> str:
        """Classes, stages and operations, for print."""
        return f"classes={len(self.classes)}, {super().extra_repr()}, shrinkage={self.shrinkage}"
