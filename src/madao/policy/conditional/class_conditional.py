"""A policy with its own probabilities and magnitudes for each class."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from madao.policy.conditional.prior import SHRINKAGE, add_prior
from madao.policy.conditional.rows import rows_of_labels
from madao.policy.learned import Policy
from madao.policy.policy_tables import PolicyTables
from madao.policy.spec import PolicySpec
from madao.policy.stages import OperationParams, rounded_stages

_KINDS = OperationParams.KINDS


class ClassPolicy(Policy):
    """A `Policy` whose logits depend on the image's class: class c has φ + δ_c, with φ shared by all classes.

    With δ = 0 the draws equal those of `Policy`. `policy(images, labels)` augments a batch. The properties `selection`,
    `application` and `magnitude` are those of the shared part φ.

    A class has few images, so its gradient has little signal. Deviations therefore have a prior, δ ~ N(0, 1 / (λ r)),
    which adds λ r δ to ∂g/∂δ. r is the root mean square of ∂g/∂δ over all classes at that step, because the scale of
    ∂g/∂φ depends on solver and loss: at δ = 1/λ the prior's gradient is as long as a typical gradient of the loss.
    Since ∂g/∂φ = Σ_c ∂g/∂δ_c, both gradients vanish only where Σ_c δ_c = 0: φ is then the mean of the classes' logits.

    Args:
        classes: Names of the classes, in the order of labels, or their number.
        stages: Number of operations in a row, K.
        shrinkage: λ; 0 for no prior.
        **settings: Further arguments of `Policy`.

    Example:
        >>> policy = madao.ClassPolicy(["cat", "dog", "owl"])
        >>> augmented = policy(images, labels)
    """

    conditional_on = "class"

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
        return self._class_logits()[0].softmax(-1)

    def condition(self, images: Tensor, labels: Tensor | None = None) -> Tensor | None:
        """Return the labels."""
        return labels

    def with_prior(self, gradients: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """Return the gradients with λ r δ added to those of the deviations; the shared part has no prior."""
        return add_prior(self, gradients, "_deviations", self.shrinkage)

    def spec(self) -> PolicySpec:
        """Return the policy's present numbers: the shared part, and those of each class."""
        selection, application, magnitude = self._class_logits()
        tables = selection.softmax(-1), application.sigmoid(), self._spread(magnitude.sigmoid())
        each = zip(*(table.unbind(1) for table in tables), strict=True)
        stages = tuple(rounded_stages(self.operations, *numbers) for numbers in each)
        return dataclasses.replace(super().spec(), classes=self.classes, class_stages=stages)

    @classmethod
    def _arguments_of(cls, spec: PolicySpec) -> dict[str, Any]:
        return super()._arguments_of(spec) | {"classes": spec.classes}

    def _start_at(self, spec: PolicySpec) -> None:
        super()._start_at(spec)
        each = self._logits_of(spec.tables())
        with torch.no_grad():
            for kind, logits in zip(_KINDS, each, strict=True):
                shared = self.get_parameter(f"{kind}_logits").unsqueeze(1)
                self.get_parameter(f"{kind}_deviations").copy_(logits - shared)

    def _class_logits(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return the logits of each class, `[K, C, n]`."""
        selection, application, magnitude = (
            shared + self.get_parameter(f"{kind}_deviations")
            for kind, shared in zip(_KINDS, self._shared(), strict=True)
        )
        return selection, application, magnitude

    def _tables(self, condition: Tensor | None, count: int) -> PolicyTables:
        rows = rows_of_labels(condition, count, self.classes)
        selection, application, magnitude = self._class_logits()
        return PolicyTables(selection, application, self._spread(magnitude.sigmoid()), rows)

    def extra_repr(self) -> str:
        """Return the settings that `print` shows."""
        return f"classes={len(self.classes)}, {super().extra_repr()}, shrinkage={self.shrinkage}"
