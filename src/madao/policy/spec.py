"""A policy as plain numbers: the contents of a policy file."""

import collections
import dataclasses
import os
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from madao.errors import PolicyFileError
from madao.files import replacing
from madao.ops import Operation
from madao.ops.checks import check_fill
from madao.ops.geometric import Fill
from madao.policy import spec_json
from madao.policy.conditional.checks import check_classes, check_network
from madao.policy.conditional.network import Network
from madao.policy.display.notebook import policy_figure, policy_html
from madao.policy.stages import OperationParams, Stages, check_stages, check_within, stage_tensors
from madao.policy.units import strength
from madao.text import printable

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["OperationParams", "PolicySpec", "check_magnitude_jitter"]


@dataclasses.dataclass(frozen=True)
class PolicySpec:
    """The numbers of a policy: per stage and operation, probabilities of selection and application, and magnitude.

    `str(spec)` is a table, `save` and `load` are JSON, `==` compares everything.

    Attributes:
        operations: The operations, with their ranges.
        stages: For each stage, one `OperationParams` per operation, in the order of `operations`. In a conditional
            policy, the part that all images share.
        fill: Colour that geometric operations leave outside the image, in [0, 1].
        classes: Names of the classes, in the order of labels; empty unless the policy depends on the class.
        class_stages: The stages of each class.
        network: The network of a policy that depends on the image: how each image's logits depart from the shared ones.
        magnitude_jitter: v in [0, 1]: a draw's magnitude lies anywhere from (1 − v) μ to μ.

    Example:
        >>> policy.spec().save("policy.json")
        >>> spec = madao.PolicySpec.load("policy.json")
    """

    operations: tuple[Operation, ...]
    stages: Stages
    fill: Fill = 0.0
    classes: tuple[str, ...] = ()
    class_stages: tuple[Stages, ...] = ()
    network: Network | None = None
    magnitude_jitter: float = 0.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "fill", check_fill(self.fill))
        check_magnitude_jitter(self.magnitude_jitter)
        if not self.operations:
            raise ValueError("operations: there is none; a policy needs at least one")
        names = [operation.name for operation in self.operations]
        for name, count in collections.Counter(names).items():
            if count > 1:
                raise ValueError(f"operations: {name} is there twice; name each operation once")
        if not self.stages:
            raise ValueError("stages: there is none; a policy needs at least one")
        check_stages("stages", self.operations, self.stages)
        check_classes(self.classes, self.class_stages, self.operations, len(self.stages))
        check_network(self.network, self.classes, self.operations, len(self.stages))

    @property
    def conditional_on(self) -> Literal["none", "class", "image"]:
        """Whether the numbers depend on the class, on the image, or on neither."""
        return "class" if self.classes else "none" if self.network is None else "image"

    def of_class(self, name: str | None) -> "PolicySpec":
        """Return the numbers of one class as an unconditional policy; for None, the part that all images share."""
        if name is not None and name not in self.classes:
            known = (
                f"this policy has {printable(', '.join(self.classes[:20]))}" if self.classes else "this policy has none"
            )
            raise ValueError(f"unknown class {printable(repr(name), 80)}; {known}")
        stages = self.stages if name is None else self.class_stages[self.classes.index(name)]
        return dataclasses.replace(self, stages=stages, classes=(), class_stages=(), network=None)

    def tensors(self, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor, Tensor]:
        """Return selection, application and μ in [0, 1] of `stages`, `[K, n]` each; μ is 0 without a magnitude."""
        return stage_tensors(self.operations, self.stages, dtype)

    def tables(self, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor, Tensor]:
        """Return the same with one row per class, `[K, C, n]`; with one row if there are no classes."""
        found = [stage_tensors(self.operations, stages, dtype) for stages in self.class_stages or (self.stages,)]
        selection, application, magnitude = (torch.stack(values, 1) for values in zip(*found, strict=True))
        return selection, application, magnitude

    def dumps(self) -> str:
        """Return the JSON text, one operation per line."""
        return spec_json.write(spec_json.Contents(**vars(self)))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the JSON file, in a new folder if need be. A crash leaves the old file or the new one, never a part."""
        with replacing(Path(path), concurrent=True) as file:
            file.write(self.dumps().encode())

    @classmethod
    def loads(cls, text: str) -> "PolicySpec":
        """Read JSON text. Raises `PolicyFileError`."""
        found = spec_json.read(text)
        try:
            return cls(**vars(found))
        except ValueError as error:
            raise PolicyFileError(f"{error}; correct the file or write it again from the policy") from None

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "PolicySpec":
        """Read a JSON file. Raises `PolicyFileError`, or `OSError` if the file cannot be opened."""
        try:
            with Path(path).open(encoding="utf-8") as file:
                return cls.loads(file.read(spec_json.LARGEST + 1))
        except UnicodeDecodeError:
            raise PolicyFileError(f"{path}: not a text file, so not a madao policy; give a policy.json") from None
        except PolicyFileError as error:
            raise PolicyFileError(f"{path}: {error}") from None

    def plot(self) -> "Figure":
        """Return a matplotlib figure: how often each stage selects and applies each operation."""
        return policy_figure(self)

    def _repr_html_(self) -> str:
        return policy_html(self)

    def __str__(self) -> str:
        """Return a table per stage, most frequent operations first; for a conditional policy, of the shared part."""
        lines = []
        for number, stage in enumerate(self.stages):
            lines.append(f"stage {number + 1}      selected  applied  strength")
            rows = sorted(zip(self.operations, stage, strict=True), key=lambda row: -row[1].selection)
            for operation, entry in rows:
                how = strength(operation, entry.magnitude, self.magnitude_jitter)
                lines.append(f"  {operation.name:<12}{entry.selection:8.1%}{entry.application:9.1%}  {how}")
        return "\n".join(lines)


def check_magnitude_jitter(magnitude_jitter: float) -> float:
    """Return the jitter; raise unless it lies in [0, 1]."""
    check_within("magnitude_jitter", magnitude_jitter, 0, 1)
    return magnitude_jitter
