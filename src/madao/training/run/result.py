"""The result of a run."""

import dataclasses
import json
from pathlib import Path
from typing import Self

from madao.config.typed import names_of, problems
from madao.errors import UserError
from madao.policy import AugmentationPolicy, ClassPolicy, Policy

FILE = "result.json"


@dataclasses.dataclass(frozen=True)
class Result:
    """The result of a run. Errors are between 0 and 1.

    Attributes:
        test_error: The error on the test set, which is evaluated once; None without a test set.
        validation_error: The error of the same weights on the validation set; None without one.
        epoch: The epoch of the evaluated weights.
        out: The run directory.
        policy: The learned policy's selection probabilities by operation, averaged over stages; empty for other
            policies. For a policy per class, the part that all classes share.
        test_loss: The loss on the test set.
        test_metrics: Other numbers of the task on the test set by name, such as `mean_class_error`.
        error: The name of the error.
        classes: The selection probabilities of each class, by its name, of a policy per class.
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
        """Return the operations that the policy selects most often, as text; empty if none is learned."""
        most = sorted(self.policy.items(), key=lambda item: -item[1])[:count]
        return ", ".join(f"{name} {100 * share:.0f} %" for name, share in most)

    @classmethod
    def load(cls, directory: Path) -> Self | None:
        """Return the result in a run directory; None if the run has not ended.

        Raises:
            UserError: The file is damaged.
        """
        try:
            content = json.loads((directory / FILE).read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        except (ValueError, RecursionError):
            content = None
        known = names_of(cls)
        needed = {field.name for field in dataclasses.fields(cls) if field.default_factory is field.default}
        if not isinstance(content, dict) or not needed <= content.keys() or any(problems(content, known)):
            raise UserError(f"{directory / FILE} is damaged; remove it, and the run measures its result again")
        return cls(**{**content, "out": str(directory)})


def preferences(policy: AugmentationPolicy | None) -> tuple[dict[str, float], dict[str, dict[str, float]]]:
    """Return the `policy` and the `classes` of a `Result`."""
    if not isinstance(policy, Policy):
        return {}, {}
    names = [operation.name for operation in policy.operations]

    def named(shares: list[float]) -> dict[str, float]:
        return dict(zip(names, shares, strict=True))

    each = policy.class_selection.detach().mean(0).tolist() if isinstance(policy, ClassPolicy) else ()
    shared = named(policy.selection.detach().mean(0).tolist())
    return shared, {name: named(shares) for name, shares in zip(policy.classes, each, strict=True)}
