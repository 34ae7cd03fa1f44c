"""Checks of the parts of a spec that only conditional policies have. Messages name the place in the policy file."""

import collections
from collections.abc import Sequence

from madao.ops import Operation
from madao.policy.conditional.network import Network
from madao.policy.stages import Stages, check_stages


def check_classes(
    classes: tuple[str, ...], class_stages: tuple[Stages, ...], operations: Sequence[Operation], count: int
) -> None:
    """Raise unless each class has a unique name and `count` stages that fit the operations."""
    if len(classes) != len(class_stages):
        raise ValueError(f"classes: {len(classes)} names for {len(class_stages)} classes; give one each")
    for name, count_of_name in collections.Counter(classes).items():
        if count_of_name > 1:
            raise ValueError(f"classes: {name} is there twice; name each class once")
    for name, stages in zip(classes, class_stages, strict=True):
        if len(stages) != count:
            raise ValueError(
                f"classes.{name}: {len(stages)} stages where the shared part has {count}; give the same number"
            )
        check_stages(f"classes.{name}", operations, stages)


def check_network(
    network: Network | None, classes: tuple[str, ...], operations: Sequence[Operation], count: int
) -> None:
    """Raise unless there is no network, or it has outputs for `count` stages of the operations."""
    if network is None:
        return
    if classes:
        raise ValueError("network: a policy has classes or a network, not both; leave one out")
    for name, found, expected in (
        ("stages", len(network.stages), count),
        *((f"stages[{k}]", len(stage), len(operations)) for k, stage in enumerate(network.stages)),
    ):
        if found != expected:
            raise ValueError(f"network.{name}: {found} entries where there are {expected}; give one each")
    for number, stage in enumerate(network.stages):
        for operation, outputs in zip(operations, stage, strict=True):
            if (outputs.magnitude is not None) != operation.has_magnitude:
                there = "is missing" if operation.has_magnitude else "does not exist for this operation"
                raise ValueError(f"network.stages[{number}].{operation.name}: the magnitude {there}")
