"""Facts about a setting, written down once: on the dataclass field that declares it."""

import dataclasses
from collections.abc import Iterator
from typing import Any


def setting(default: Any, *, is_option: bool = True, affects_result: bool = True) -> Any:
    """Return a dataclass field.

    Args:
        default: Its value where none is given.
        is_option: Whether `madao train` has a flag for it. The others are for experiments on the method: they are set
            in YAML files (`--config`, recipes, `--variants`) and from Python.
        affects_result: Whether a run computes other numbers with another value. The others say where and how a run
            is computed: they may change when it is resumed, and runs that differ in them are compared.
    """
    metadata = {"is_option": is_option, "affects_result": affects_result}
    return dataclasses.field(default=default, metadata=metadata)


def names_without(fact: str, kind: type[Any], prefix: str = "") -> Iterator[str]:
    """Yield the dotted names of the settings that `setting` was told `fact=False` of."""
    for field in dataclasses.fields(kind):
        if isinstance(field.type, type) and dataclasses.is_dataclass(field.type):
            yield from names_without(fact, field.type, f"{prefix}{field.name}.")
        elif not field.metadata.get(fact, True):
            yield prefix + field.name
