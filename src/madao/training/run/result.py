"""How a run ended."""

import dataclasses
import json
from pathlib import Path
from typing import Self

from madao.policy import AugmentationPolicy, ClassPolicy, Policy

FILE = "result.json"


@dataclasses.dataclass(frozen=True)
class Result:
    """How a run ended. Errors are parts of 1.

    Attributes:
        test_error: On the test set, seen once; None where there is none.
        validation_error: On the validation images, of the weights that saw the test set; None where none were set
            aside.
        epoch: The epoch of those weights.
        out: The run directory.
        policy: The learned policy's selection probabilities by operation, averaged over stages, of what classes
            share where they have policies of their own; else empty.
        test_loss: On the test set.
        test_metrics: What else the task measures on the test set: `mean_class_error`, say.
        error: What the task's error is called.
        classes: The same for each class, by its name, where they have policies of their own.
    """

    test_error: float | None
    validation_error: float | None
    epoch: int
    out: str
    policy: dict[str, float]
    test_loss: float | None = None
    test_metrics: dict[str, float] = dataclasses.field(default_factory=dict)
    error: str = "error"
    classes: dict[str, dict[str, float]] = dataclasses.field(default_factory=dict)

    def favoured(self, count: int) -> str:
        """The operations the policy chooses most, for people; empty where none is learned."""
        most = sorted(self.policy.items(), key=lambda item: -item[1])[:count]
        return ", ".join(f"{name} {100 * share:.0f} %" for name, share in most)

    @classmethod
    def load(cls, directory: Path) -> Self | None:
        """The result in a run directory; None where the run has not ended."""
        try:
            content = json.loads((directory / FILE).read_text())
        except FileNotFoundError:
            return None
        return cls(**{**content, "out": str(directory)})


def preferences(policy: AugmentationPolicy | None) -> tuple[dict[str, float], dict[str, dict[str, float]]]:
    """The `policy` and `classes` of a `Result`."""
    if not isinstance(policy, Policy):
        return {}, {}
    names = [operation.name for operation in policy.operations]

    def named(shares: list[float]) -> dict[str, float]:
        return dict(zip(names, shares, strict=True))

    each = policy.class_selection.detach().mean(0).tolist() if isinstance(policy, ClassPolicy) else ()
    shared = named(policy.selection.detach().mean(0).tolist())
    return shared, {name: named(shares) for name, shares in zip(policy.classes, each, strict=True)}
