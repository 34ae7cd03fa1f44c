"""A small network from the features of an image to the deviation of its logits from the shared ones."""

import dataclasses
import math
from typing import NamedTuple

import torch
from torch import Tensor

from madao.policy.conditional.features import NAMES
from madao.policy.json_fields import Numbers

_LARGEST, _SMALLEST = 1e6, 1e-6
"""Limits of numbers and scales, beyond which float32 gives no probabilities."""


class Outputs(NamedTuple):
    """The amounts that each hidden unit adds to the logits of one operation in one stage."""

    selection: Numbers
    application: Numbers
    magnitude: Numbers | None = None


@dataclasses.dataclass(frozen=True)
class Network:
    """One hidden layer as plain numbers, for files: h = tanh(W (f − centre) / scale / √F + b) − c, logits + V h / √H.

    f are the image's F features (`madao.policy.conditional.features`), H the number of hidden units.
    """

    centre: Numbers  # the mean of each feature
    scale: Numbers  # the standard deviation of each feature
    weights: tuple[Numbers, ...]  # W, F numbers for each hidden unit
    bias: Numbers  # b
    offset: Numbers  # c, the mean of each hidden unit; with it, the logits' mean over images is the shared part
    stages: tuple[tuple[Outputs, ...], ...]  # V, for each stage one per operation

    def __post_init__(self) -> None:
        # Messages name the places of the policy file.
        inputs, units = len(NAMES), len(self.weights)
        if units < 1:
            raise ValueError("network.units: there is none; a network needs at least one")
        _check("network.features: centre", self.centre, inputs, "features")
        _check("network.features: scale", self.scale, inputs, "features")
        for name, scale in zip(NAMES, self.scale, strict=True):
            if not scale >= _SMALLEST:
                raise ValueError(f"network.features.{name}.scale: must be at least {_SMALLEST:g}, got {scale:g}")
        _check("network.units: bias", self.bias, units, "hidden units")
        _check("network.units: offset", self.offset, units, "hidden units")
        for number, row in enumerate(self.weights):
            _check(f"network.units[{number}].weights", row, inputs, "features")
        for number, stage in enumerate(self.stages):
            for position, outputs in enumerate(stage):
                for name, values in outputs._asdict().items():
                    if values is not None:
                        where = f"network.stages[{number}]: {name} of operation {position + 1}"
                        _check(where, values, units, "hidden units")

    def tensors(self) -> "Layers":
        """Return the network as tensors, with zeros for magnitudes that do not exist."""
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


def _check(where: str, values: Numbers, count: int, what: str) -> None:
    if len(values) != count:
        raise ValueError(f"{where}: {len(values)} numbers for {count} {what}; give one each")
    for value in values:
        if not abs(value) <= _LARGEST:
            raise ValueError(f"{where}: must be numbers of up to {_LARGEST:g}, got {value!r}")


class Layers(NamedTuple):
    """The network as tensors: `[F]`, `[F]`, `[H, F]`, `[H]`, `[H]`, and the outputs `[K, H, n]`."""

    centre: Tensor
    scale: Tensor
    weights: Tensor
    bias: Tensor
    offset: Tensor
    selection: Tensor
    application: Tensor
    magnitude: Tensor

    def hidden(self, features: Tensor) -> Tensor:
        """Return h, `[B, H]`, from the images' features, `[B, F]`."""
        inputs = (features.to(self.weights.dtype) - self.centre) / (self.scale * math.sqrt(self.weights.shape[1]))
        return torch.tanh((inputs[:, None] * self.weights).sum(-1) + self.bias) - self.offset

    def departures(self, features: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the amounts added to each image's logits of selection, application and magnitude, `[K, B, n]` each."""
        hidden = self.hidden(features)[:, :, None] / math.sqrt(len(self.weights))

        def added(outputs: Tensor) -> Tensor:
            # Not a matrix product: autocast and TF32 would lower its precision and change the probabilities.
            return (hidden * outputs[:, None]).sum(2)

        return added(self.selection), added(self.application), added(self.magnitude)
