"""A policy with its own probabilities and magnitudes for each class."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from madao.policy.conditional.conditional_policy import SHRINKAGE, ConditionalPolicy
from madao.policy.conditional.rows import rows_of_labels
from madao.policy.spec import PolicySpec
from madao.policy.stages import rounded_stages


class ClassPolicy(ConditionalPolicy):
    """A `Policy` whose logits depend on the image's class: class c has φ + δ_c, with φ shared by all classes.

    With δ = 0 the draws equal those of `Policy`. `policy(images, labels)` augments a batch. The properties `selection`,
    `application` and `magnitude` are those of the shared part φ.

    A class has few images, so its gradient has little signal. Deviations therefore have a prior, δ ~ N(0, 1 / (λ r)),
    which adds λ r δ to ∂g/∂δ. Here r is the root mean square of ∂g/∂δ over all classes at that step, because the scale
    of ∂g/∂φ depends on solver and loss. At δ = 1/λ the prior's gradient is as long as a typical gradient of the loss.
    Since ∂g/∂φ = Σ_c ∂g/∂δ_c, both gradients vanish only where Σ_c δ_c = 0. Then φ is the mean of the classes' logits.

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
    deviations = "deviations"

    def __init__(
        self, classes: int | Sequence[str], stages: int = 2, shrinkage: float = SHRINKAGE, **settings: Any
    ) -> None:
        names = tuple(str(number) for number in range(classes)) if isinstance(classes, int) else tuple(classes)
        if len(names) < 2 or len(set(names)) < len(names):
            raise ValueError(f"classes must be two or more, each with its own name, got {classes!r}")
        super().__init__(stages, len(names), shrinkage, **settings)
        self.classes = names

    @property
    def class_selection(self) -> Tensor:
        """π of each class, `[K, C, n]`."""
        return self._class_logits()[0].softmax(-1)

    def condition(self, images: Tensor, labels: Tensor | None = None) -> Tensor | None:
        """Return the labels."""
        return labels

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
        logits = self._logits_of(spec.tables())
        with torch.no_grad():
            for part, each, shared in zip(self._deviations(), logits, self._shared(), strict=True):
                part.copy_(each - shared)

    def _class_logits(self) -> tuple[Tensor, ...]:
        return tuple(shared + part for shared, part in zip(self._shared(), self._deviations(), strict=True))

    def _logits(self, condition: Tensor | None, count: int) -> tuple[tuple[Tensor, ...], Tensor | None]:
        rows = rows_of_labels(condition, count, self.classes)
        return self._class_logits(), rows

    def extra_repr(self) -> str:
        """Return the settings that `print` shows."""
        return f"classes={len(self.classes)}, {super().extra_repr()}"
