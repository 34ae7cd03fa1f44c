"""Facts about a setting, kept in the metadata of the dataclass field that declares it.

Most settings are options of `madao train`. Settings with `is_option=False` are for experiments on the method: they are
set from Python, in YAML files (`--config`, recipes) or in the file of `--variants`, and have no flag.
"""

import dataclasses
from collections.abc import Iterator
from typing import Any


def setting(default: Any, *, is_option: bool = True, affects_result: bool = True) -> Any:
    """Return a dataclass field for a setting.

    Args:
        default: The default value.
        is_option: Whether `madao train` has a flag for the setting.
        affects_result: Whether the value changes the numbers that a run computes. A setting that does not, such as
            `device`, may change when a run is resumed, and runs that differ in it can be compared.

    Example:
        >>> @dataclasses.dataclass(frozen=True)
        ... class Config:
        ...     device: str = setting("auto", affects_result=False)
        >>> [*names_without("affects_result", Config)]
        ['device']
    """
    metadata = {"is_option": is_option, "affects_result": affects_result}
    return dataclasses.field(default=default, metadata=metadata)


def names_without(fact: str, kind: type[Any], prefix: str = "") -> Iterator[str]:
    """Yield the dotted names of the settings that were declared with `fact=False`, such as `is_option`."""
    for field in dataclasses.fields(kind):
        if isinstance(field.type, type) and dataclasses.is_dataclass(field.type):
            yield from names_without(fact, field.type, f"{prefix}{field.name}.")
        elif not field.metadata.get(fact, True):
            yield prefix + field.name
