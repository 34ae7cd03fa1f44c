"""The JSON file of a policy: written to be read by people, read as if it came from a stranger."""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from madao.errors import PolicyFileError
from madao.ops import OPERATIONS, Operation, find
from madao.ops.geometric import Fill
from madao.policy.conditional.features import NAMES
from madao.policy.conditional.network import Network, Numbers, Outputs
from madao.text import nearest

T = TypeVar("T")

FORMAT = "madao-policy"
VERSION = 4
"""Version 2 has classes, 3 a network, 4 a variation, and one of these perhaps. A policy with none of them is written as
version 1, for older madaos too."""

Row = tuple[float, float, float | None]
"""Selection, application and magnitude of one operation in one stage."""

Contents = tuple[tuple[Operation, ...], list[list[Row]], Fill, dict[str, list[list[Row]]], Network | None, float]
"""Operations, for each stage a row per operation, fill, the stages of each class by its name, network and variation."""


def write(
    operations: Sequence[Operation],
    stages: Sequence[Sequence[Row]],
    fill: Fill,
    classes: Mapping[str, Sequence[Sequence[Row]]],
    network: Network | None,
    magnitude_jitter: float = 0.0,
) -> str:
    """The JSON text, one operation a line."""
    version = 4 if magnitude_jitter else 3 if network is not None else 2 if classes else 1
    more = {"variation": magnitude_jitter} if magnitude_jitter else {}
    head = json.dumps({"format": FORMAT, "version": version, "fill": fill, **more}, indent=2)[:-2]
    declared = _lines({operation.name: _describe(operation) for operation in operations}, 2)
    text = f'{head},\n  "operations": {declared},\n  "stages": {_stages(operations, stages, 2)}'
    if classes:
        parts = [f"    {json.dumps(name)}: {_stages(operations, part, 4)}" for name, part in classes.items()]
        text += ',\n  "classes": {\n' + ",\n".join(parts) + "\n  }"
    if network is not None:
        text += f',\n  "network": {_network(operations, network)}'
    return text + "\n}\n"


def read(text: str) -> Contents:
    """Read JSON text; its numbers are finite, but not yet known to be probabilities. Raises `PolicyFileError`."""
    try:
        data = json.loads(text, object_pairs_hook=_no_duplicates)
    except PolicyFileError:
        raise
    except (ValueError, RecursionError) as error:
        raise PolicyFileError(
            f"not a whole JSON document ({error}): the file is damaged or was cut short; restore it, or write it "
            "again with policy.spec().save(path)"
        ) from None
    return _read(data)


def _describe(operation: Operation) -> dict[str, Any]:
    if operation.range is None:
        return {}
    return {"range": list(operation.range), "signed": operation.signed, "unit": operation.unit}


def _entry(row: Row | Outputs) -> dict[str, float | Numbers]:
    return {name: value for name, value in zip(Outputs._fields, row, strict=True) if value is not None}


def _network(operations: Sequence[Operation], network: Network) -> str:
    """A JSON object: features by name, hidden units a line each, and outputs as stages are written."""
    seen = {
        name: {"centre": centre, "scale": scale}
        for name, centre, scale in zip(NAMES, network.centre, network.scale, strict=True)
    }
    units = [
        {"bias": bias, "offset": offset, "weights": row}
        for bias, offset, row in zip(network.bias, network.offset, network.weights, strict=True)
    ]
    listed = ",\n      ".join(json.dumps(unit) for unit in units)
    return (
        f'{{\n    "features": {_lines(seen, 4)},\n    "units": [\n      {listed}\n    ],\n'
        f'    "stages": {_stages(operations, network.stages, 4)}\n  }}'
    )


def _stages(operations: Sequence[Operation], stages: Sequence[Sequence[Row | Outputs]], indent: int) -> str:
    """A JSON list of stages, one operation a line."""
    within = " " * (indent + 2)
    texts = (
        _lines({operation.name: _entry(row) for operation, row in zip(operations, stage, strict=True)}, indent + 2)
        for stage in stages
    )
    return f"[\n{within}" + f",\n{within}".join(texts) + f"\n{' ' * indent}]"


def _lines(members: dict[str, Any], indent: int) -> str:
    """A JSON object with one member a line."""
    inner = ",\n".join(f"{' ' * (indent + 2)}{json.dumps(name)}: {json.dumps(v)}" for name, v in members.items())
    return f"{{\n{inner}\n{' ' * indent}}}"


# Each function below gets a place's name, for its messages, and a value of unknown type.


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise PolicyFileError(f"{twice}: is there twice in one object; delete one of the two")
    return members


def _read(data: Any) -> Contents:
    _check_members("the file", data, required=("format", "version"), optional=None)
    if data["format"] != FORMAT:
        raise PolicyFileError(f"format: expected {FORMAT!r}, got {data['format']!r}; give a policy.json of madao's")
    version = data["version"]
    if isinstance(version, bool) or not isinstance(version, int) or version < 1:
        raise PolicyFileError(f"version: expected a whole number from 1 to {VERSION}, got {version!r}")
    if version > VERSION:
        raise PolicyFileError(
            f"version: the file has version {version} and this madao reads up to {VERSION}; upgrade madao, or save the "
            "policy again with this one"
        )
    newer = {1: (), 2: ("classes",), 3: ("network",), 4: ("variation",)}[version]
    required = ("format", "version", "fill", "operations", "stages", *newer)
    _check_members("the file", data, required, optional=("classes", "network") if version >= 4 else ())
    declared, classes = data["operations"], data.get("classes", {})
    _check_members("operations", declared, optional=None)
    operations = tuple(_read_operation(name, description) for name, description in declared.items())
    _check_members("classes", classes, optional=None)
    return (
        operations,
        _read_stages("stages", operations, data["stages"], _read_number),
        _read_fill(data["fill"]),
        {name: _read_stages(f"classes.{name}", operations, part, _read_number) for name, part in classes.items()},
        _read_network(operations, data["network"]) if "network" in data else None,
        _read_number("variation", data.get("variation", 0.0)),
    )


def _read_network(operations: tuple[Operation, ...], data: Any) -> Network:
    _check_members("network", data, required=("features", "units", "stages"))
    seen, units, stages = data["features"], data["units"], data["stages"]
    _check_members("network.features", seen, required=NAMES)
    for name in NAMES:
        _check_members(f"network.features.{name}", seen[name], required=("centre", "scale"))
    centre, scale = (
        tuple(_read_number(f"network.features.{name}.{kind}", seen[name][kind]) for name in NAMES)
        for kind in ("centre", "scale")
    )
    if not isinstance(units, list):
        raise PolicyFileError(f"network.units: expected a list of objects, got {_kind(units)}")
    for number, unit in enumerate(units):
        _check_members(f"network.units[{number}]", unit, required=("bias", "offset", "weights"))
    bias, offset = (
        tuple(_read_number(f"network.units[{number}].{name}", unit[name]) for number, unit in enumerate(units))
        for name in ("bias", "offset")
    )
    weights = tuple(
        _read_numbers(f"network.units[{number}].weights", unit["weights"]) for number, unit in enumerate(units)
    )
    rows = _read_stages("network.stages", operations, stages, _read_numbers)
    outputs = tuple(tuple(Outputs(*row) for row in stage) for stage in rows)
    try:
        return Network(centre, scale, weights, bias, offset, outputs)
    except ValueError as error:
        raise PolicyFileError(f"{error}; correct the file or write it again from the policy") from None


def _read_operation(name: str, description: Any) -> Operation:
    where = f"operations.{name}"
    if name not in OPERATIONS:
        raise PolicyFileError(
            f"{where}: unknown operation {nearest(name, OPERATIONS)}; an operation of your own has to be registered "
            "with madao.ops.register before the file is read"
        )
    known = find(name)
    if known.range is None:
        _check_members(where, description)
        return known
    _check_members(where, description, required=("range", "signed", "unit"))
    if description["signed"] is not known.signed:
        raise PolicyFileError(f"{where}.signed: expected {json.dumps(known.signed)}, got {description['signed']!r}")
    if not isinstance(description["unit"], str):
        raise PolicyFileError(f"{where}.unit: expected text, got {_kind(description['unit'])}")
    span = description["range"]
    if not isinstance(span, list) or len(span) != 2:
        raise PolicyFileError(f"{where}.range: expected two numbers, got {span!r}")
    neutral, strongest = (_read_number(f"{where}.range", bound) for bound in span)
    if neutral != known.range[0]:
        raise PolicyFileError(
            f"{where}.range: {name} changes nothing at {known.range[0]:g}, so its range must start there, got {span!r}"
        )
    try:
        return known.limited(strongest)
    except ValueError as error:
        raise PolicyFileError(f"{where}.range: {error}") from None


def _read_stages(
    where: str, operations: tuple[Operation, ...], stages: Any, read: Callable[[str, Any], T]
) -> list[list[tuple[T, T, T | None]]]:
    if not isinstance(stages, list):
        raise PolicyFileError(f"{where}: expected a list of objects, got {_kind(stages)}")
    return [_read_stage(f"{where}[{number}]", operations, stage, read) for number, stage in enumerate(stages)]


def _read_stage(
    where: str, operations: tuple[Operation, ...], stage: Any, read: Callable[[str, Any], T]
) -> list[tuple[T, T, T | None]]:
    _check_members(where, stage, required=tuple(operation.name for operation in operations))
    rows: list[tuple[T, T, T | None]] = []
    for operation in operations:
        place, entry = f"{where}.{operation.name}", stage[operation.name]
        fields = ("selection", "application", *(("magnitude",) if operation.has_magnitude else ()))
        _check_members(place, entry, required=fields)
        numbers = [read(f"{place}.{field}", entry[field]) for field in fields]
        rows.append((numbers[0], numbers[1], numbers[2] if operation.has_magnitude else None))
    return rows


def _read_fill(fill: Any) -> Fill:
    if isinstance(fill, list):
        return tuple(_read_number("fill", value) for value in fill)
    return _read_number("fill", fill)


def _read_numbers(where: str, values: Any) -> Numbers:
    if not isinstance(values, list):
        raise PolicyFileError(f"{where}: expected a list of numbers, got {_kind(values)}")
    return tuple(_read_number(f"{where}[{number}]", value) for number, value in enumerate(values))


def _read_number(where: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise PolicyFileError(f"{where}: expected a number, got {_kind(value)}")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise PolicyFileError(f"{where}: expected a finite number, got {number}")
    return number


def _check_members(
    where: str, value: Any, required: tuple[str, ...] = (), optional: tuple[str, ...] | None = ()
) -> None:
    """Raise unless `value` is an object with the required members and, unless `optional` is None, no others."""
    if not isinstance(value, dict):
        raise PolicyFileError(f"{where}: expected an object, got {_kind(value)}")
    for name in required:
        if name not in value:
            raise PolicyFileError(f"{where}: the field {name!r} is missing; restore it or write the file again")
    if optional is not None:
        for name in value:
            if name not in required and name not in optional:
                expected = nearest(name, required) if required else f"{name!r}; none belongs here"
                raise PolicyFileError(f"{where}: unknown field {expected}")


def _kind(value: Any) -> str:
    names = {dict: "an object", list: "a list", str: f"the text {value!r}", bool: json.dumps(value)}
    return names.get(type(value), repr(value)) if value is not None else "null"
