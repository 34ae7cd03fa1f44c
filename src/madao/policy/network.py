"""A small network, from what an image shows to how its law departs from the shared one."""

import dataclasses
import math
from typing import NamedTuple

import torch
from torch import Tensor

from madao.policy.features import NAMES

Numbers = tuple[float, ...]


class Outputs(NamedTuple):
    """What hidden units add to the logits of one operation in one stage, a number a unit.

    Attributes:
        selection: To that of its selection.
        application: To that of its application.
        magnitude: To that of its μ; None where the operation has none.
    """

    selection: Numbers
    application: Numbers
    magnitude: Numbers | None = None


@dataclasses.dataclass(frozen=True)
class Network:
    """One hidden layer as plain numbers, for files: h = tanh(W (f − centre) / scale / √F + b) − c, logits + V h / √H.

    f are the image's F features (`madao.policy.features`), H the number of hidden units.

    Attributes:
        centre: What features are on average, `[F]`.
        scale: How far they spread, `[F]`.
        weights: W, for each hidden unit F numbers.
        bias: b, one for each hidden unit.
        offset: c, what each hidden unit is on average: what all images share is not the network's to say.
        stages: V, for each stage an `Outputs` of H numbers per operation.
    """

    centre: Numbers
    scale: Numbers
    weights: tuple[Numbers, ...]
    bias: Numbers
    offset: Numbers
    stages: tuple[tuple[Outputs, ...], ...]

    def __post_init__(self) -> None:
        for name, row in (("centre", self.centre), ("scale", self.scale)):
            if len(row) != len(NAMES):
                raise ValueError(f"network.{name}: {len(row)} numbers for {len(NAMES)} features; give one each")
        if not min(self.scale) > 0:
            raise ValueError(f"network.scale: must be above 0, got {min(self.scale):g}")
        units = len(self.weights)
        if units < 1:
            raise ValueError("network.units: there is none; a network needs at least one")
        for name, row in (("bias", self.bias), ("offset", self.offset)):
            if len(row) != units:
                raise ValueError(f"network.{name}: {len(row)} numbers for {units} hidden units; give one each")
        for number, row in enumerate(self.weights):
            if len(row) != len(NAMES):
                raise ValueError(f"network.weights[{number}]: {len(row)} numbers for {len(NAMES)} features")
        for number, stage in enumerate(self.stages):
            for outputs in stage:
                for name, values in outputs._asdict().items():
                    if values is not None and len(values) != units:
                        raise ValueError(
                            f"network.stages[{number}]: {name} has {len(values)} numbers for {units} hidden units"
                        )

    def tensors(self) -> "Layers":
        """As tensors; operations without a magnitude have zeros there."""
        zeros = (0.0,) * len(self.bias)
        found = [
            [[getattr(outputs, name) or zeros for outputs in stage] for stage in self.stages]
            for name in Outputs._fields
        ]
        selection, application, magnitude = (torch.tensor(kind).transpose(1, 2).contiguous() for kind in found)
        return Layers(
            torch.tensor(self.centre),
            torch.tensor(self.scale),
            torch.tensor(self.weights),
            torch.tensor(self.bias),
            torch.tensor(self.offset),
            selection,
            application,
            magnitude,
        )


class Layers(NamedTuple):
    """The network as tensors: `centre`, `scale` `[F]`, `weights` `[H, F]`, `bias`, `offset` `[H]`, else `[K, H, n]`."""

    centre: Tensor
    scale: Tensor
    weights: Tensor
    bias: Tensor
    offset: Tensor
    selection: Tensor
    application: Tensor
    magnitude: Tensor

    def hidden(self, features: Tensor) -> Tensor:
        """h, `[B, H]`, from the images' features, `[B, F]`."""
        inputs = (features.to(self.weights.dtype) - self.centre) / (self.scale * math.sqrt(self.weights.shape[1]))
        return torch.tanh(inputs @ self.weights.T + self.bias) - self.offset

    def departures(self, features: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """What is added to the logits of selection, application and magnitude of each image, `[K, B, n]` each.

        Args:
            features: Of the images, `[B, F]`.
        """
        hidden = self.hidden(features) / math.sqrt(len(self.weights))
        return hidden @ self.selection, hidden @ self.application, hidden @ self.magnitude
