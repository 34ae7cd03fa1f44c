"""Reading and writing the parts of a policy file.

Every reader takes the name of the place, for its messages, and a value of unknown type.
"""

import json
import math
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from madao.errors import PolicyFileError
from madao.ops import Operation
from madao.policy.stages import OperationParams
from madao.text import nearest, printable

_SHOWN = 80
"""Characters of a value, or of a name, that a message shows."""

T = TypeVar("T")
Numbers = tuple[float, ...]


def write_members(members: dict[str, Any], indent: int) -> str:
    """Return a JSON object with one member per line."""
    inner = ",\n".join(f"{' ' * (indent + 2)}{json.dumps(name)}: {json.dumps(v)}" for name, v in members.items())
    return f"{{\n{inner}\n{' ' * indent}}}"


def write_stages(operations: Sequence[Operation], stages: Sequence[Sequence[Sequence[Any]]], indent: int) -> str:
    """Return a JSON list of stages with one operation per line.

    Args:
        operations: The operations.
        stages: For each stage and operation, the values for selection, application and magnitude; None is left out.
        indent: Spaces before the list.
    """
    within = " " * (indent + 2)
    texts = (
        write_members(
            {operation.name: _entry(row) for operation, row in zip(operations, stage, strict=True)}, indent + 2
        )
        for stage in stages
    )
    return f"[\n{within}" + f",\n{within}".join(texts) + f"\n{' ' * indent}]"


def _entry(row: Sequence[Any]) -> dict[str, Any]:
    return {name: value for name, value in zip(OperationParams.KINDS, row, strict=True) if value is not None}


def read_stages(
    where: str, operations: Sequence[Operation], stages: Any, read: Callable[[str, Any], T]
) -> list[list[tuple[T, T, T | None]]]:
    """Return selection, application and magnitude for each stage and operation, each value read by `read`."""
    return [
        _read_stage(f"{where}[{number}]", operations, stage, read)
        for number, stage in enumerate(read_list(where, stages, "objects"))
    ]


def _read_stage(
    where: str, operations: Sequence[Operation], stage: Any, read: Callable[[str, Any], T]
) -> list[tuple[T, T, T | None]]:
    check_members(where, stage, required=tuple(operation.name for operation in operations))
    rows: list[tuple[T, T, T | None]] = []
    for operation in operations:
        place, entry = f"{where}.{operation.name}", stage[operation.name]
        fields = OperationParams.KINDS if operation.has_magnitude else OperationParams.KINDS[:2]
        check_members(place, entry, required=fields)
        selection, application, *magnitude = (read(f"{place}.{field}", entry[field]) for field in fields)
        rows.append((selection, application, magnitude[0] if magnitude else None))
    return rows


def read_list(where: str, values: Any, of: str) -> list[Any]:
    """Return the value if it is a list."""
    if not isinstance(values, list):
        raise PolicyFileError(f"{where}: expected a list of {of}, got {kind(values)}")
    return values


def read_numbers(where: str, values: Any) -> Numbers:
    """Return a list of finite numbers as a tuple."""
    return tuple(
        read_number(f"{where}[{number}]", value) for number, value in enumerate(read_list(where, values, "numbers"))
    )


def read_number(where: str, value: Any) -> float:
    """Return a finite number as a float."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise PolicyFileError(f"{where}: expected a number, got {kind(value)}")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise PolicyFileError(f"{where}: expected a finite number, got {number}")
    return number


def check_members(where: str, value: Any, required: Sequence[str] = (), optional: Sequence[str] | None = ()) -> None:
    """Raise unless a value is an object with the required members and, unless `optional` is None, no others."""
    if not isinstance(value, dict):
        raise PolicyFileError(f"{where}: expected an object, got {kind(value)}")
    for name in required:
        if name not in value:
            raise PolicyFileError(f"{where}: the field {name!r} is missing; restore it or write the file again")
    if optional is not None:
        for name in value:
            if name not in required and name not in optional:
                expected = nearest(name, required) if required else f"{shown(name)}; none belongs here"
                raise PolicyFileError(f"{where}: unknown field {expected}")


def kind(value: Any) -> str:
    """Name a JSON value for messages."""
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    if isinstance(value, dict | list):
        return "an object" if isinstance(value, dict) else "a list"
    return f"{'the text ' if isinstance(value, str) else ''}{shown(value)}"


def shown(value: Any) -> str:
    """Return a JSON value for messages: shortened, and without control characters."""
    return printable(repr(value[:_SHOWN] if isinstance(value, str | list) else value), _SHOWN)
