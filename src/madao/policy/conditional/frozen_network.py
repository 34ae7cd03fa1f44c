"""The condition of a frozen policy: the dependence of its numbers on the class or on the image."""

import abc
import dataclasses

from torch import Tensor, nn

from madao.ops.checks import check_images
from madao.policy.conditional.features import NAMES, features
from madao.policy.conditional.network import Layers, Network
from madao.policy.conditional.rows import rows_of_features, rows_of_labels
from madao.policy.policy_tables import PolicyTables


class FrozenCondition(nn.Module, abc.ABC):
    """The part of a `FrozenPolicy` that only conditional policies have. It holds no state to save."""

    @abc.abstractmethod
    def condition(self, images: Tensor, labels: Tensor | None) -> Tensor | None:
        """Return what each image's numbers depend on, one row per image."""

    @abc.abstractmethod
    def tables(self, shared: PolicyTables, condition: Tensor | None, count: int) -> PolicyTables:
        """Return the tables for `count` images, from log π, p and μ of the spec."""


def frozen_condition(classes: tuple[str, ...], network: Network | None) -> FrozenCondition | None:
    """Return the condition of a spec with these classes or this network; None for an unconditional policy."""
    if classes:
        return _ByClass(classes)
    return None if network is None else _ByImage(network)


class _ByClass(FrozenCondition):
    def __init__(self, classes: tuple[str, ...]) -> None:
        super().__init__()
        self.classes = classes

    def condition(self, images: Tensor, labels: Tensor | None) -> Tensor | None:
        return labels

    def tables(self, shared: PolicyTables, condition: Tensor | None, count: int) -> PolicyTables:
        return dataclasses.replace(shared, rows=rows_of_labels(condition, count, self.classes))


class _ByImage(FrozenCondition):
    def __init__(self, network: Network) -> None:
        super().__init__()
        for name, tensor in network.tensors()._asdict().items():
            self.register_buffer(name, tensor, persistent=False)

    def condition(self, images: Tensor, labels: Tensor | None) -> Tensor | None:
        check_images(images)
        return features(images)

    def tables(self, shared: PolicyTables, condition: Tensor | None, count: int) -> PolicyTables:
        found, rows = rows_of_features(condition, count, len(NAMES))
        device = shared.selection.device
        layers = Layers(*(self.get_buffer(name).to(device) for name in Layers._fields))
        selection, application, magnitude = layers.departures(found)
        return PolicyTables(
            (shared.selection + selection).log_softmax(-1),
            (shared.application.logit() + application).sigmoid(),
            (shared.magnitude.logit() + magnitude).sigmoid(),
            rows,
        )
