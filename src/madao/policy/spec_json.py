"""The JSON file of a policy: easy to read for people, and checked as an untrusted file when it is read."""

import collections
import dataclasses
import json
from typing import Any

from madao.errors import PolicyFileError
from madao.ops import OPERATIONS, Operation, find
from madao.ops.geometric import Fill
from madao.policy.conditional.network import Network
from madao.policy.conditional.network_json import read_network, write_network
from madao.policy.json_fields import (
    check_members,
    kind,
    read_number,
    read_numbers,
    read_stages,
    shown,
    write_members,
    write_stages,
)
from madao.policy.stages import OperationParams, Stages
from madao.text import nearest, printable

FORMAT = "madao-policy"
VERSION = 4
"""Version 2 adds classes, 3 a network, 4 a magnitude jitter, which may come with either.

A policy with none of them is written as version 1, so that older versions of madao can read it.
"""

LARGEST = 64 * 2**20
"""Characters. A policy for each of ten thousand classes has half as many."""

_JITTER = "variation"
"""The magnitude jitter's name in the file, from before it was renamed; files must stay readable."""


@dataclasses.dataclass(frozen=True)
class Contents:
    """The fields of a `PolicySpec` as a file holds them: finite numbers, not yet checked to be probabilities."""

    operations: tuple[Operation, ...]
    stages: Stages
    fill: Fill
    classes: tuple[str, ...]
    class_stages: tuple[Stages, ...]
    network: Network | None
    magnitude_jitter: float


def write(contents: Contents) -> str:
    """Return the JSON text, one operation per line."""
    operations, jitter = contents.operations, contents.magnitude_jitter
    version = 4 if jitter else 3 if contents.network is not None else 2 if contents.classes else 1
    head = {"format": FORMAT, "version": version, "fill": contents.fill} | ({_JITTER: jitter} if jitter else {})
    parts = {
        "operations": write_members({operation.name: _describe(operation) for operation in operations}, 2),
        "stages": _write_stages(operations, contents.stages, 2),
    }
    if contents.classes:
        each = zip(contents.classes, contents.class_stages, strict=True)
        texts = [f"    {json.dumps(name)}: {_write_stages(operations, stages, 4)}" for name, stages in each]
        parts["classes"] = "{\n" + ",\n".join(texts) + "\n  }"
    if contents.network is not None:
        parts["network"] = write_network(operations, contents.network)
    return json.dumps(head, indent=2)[:-2] + "".join(f',\n  "{name}": {text}' for name, text in parts.items()) + "\n}\n"


def read(text: str) -> Contents:
    """Read JSON text. Raises `PolicyFileError`."""
    if len(text) > LARGEST:
        raise PolicyFileError(f"expected a policy of at most {LARGEST:,} characters, got {len(text):,}")
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


def _write_stages(operations: tuple[Operation, ...], stages: Stages, indent: int) -> str:
    rows = [[(entry.selection, entry.application, entry.magnitude) for entry in stage] for stage in stages]
    return write_stages(operations, rows, indent)


def _read_stages(where: str, operations: tuple[Operation, ...], data: Any) -> Stages:
    rows = read_stages(where, operations, data, read_number)
    return tuple(tuple(OperationParams(*row) for row in stage) for stage in rows)


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) < len(pairs):
        (twice, _), *_ = collections.Counter(name for name, _ in pairs).most_common(1)
        raise PolicyFileError(f"{printable(twice, 80)}: is there twice in one object; delete one of the two")
    return members


def _read(data: Any) -> Contents:
    check_members("the file", data, required=("format", "version"), optional=None)
    if data["format"] != FORMAT:
        raise PolicyFileError(
            f"format: expected {FORMAT!r}, got {shown(data['format'])}; give a policy.json of madao's"
        )
    version = data["version"]
    if isinstance(version, bool) or not isinstance(version, int) or version < 1:
        raise PolicyFileError(f"version: expected a whole number from 1 to {VERSION}, got {shown(version)}")
    if version > VERSION:
        raise PolicyFileError(
            f"version: the file has version {shown(version)} and this madao reads up to {VERSION}; upgrade madao, or "
            "save the policy again with this one"
        )
    newer = {1: (), 2: ("classes",), 3: ("network",), 4: (_JITTER,)}[version]
    required = ("format", "version", "fill", "operations", "stages", *newer)
    check_members("the file", data, required, optional=("classes", "network") if version >= 4 else ())
    declared, classes = data["operations"], data.get("classes", {})
    check_members("operations", declared, optional=None)
    operations = tuple(_read_operation(name, description) for name, description in declared.items())
    check_members("classes", classes, optional=None)
    jitter = read_number(_JITTER, data.get(_JITTER, 0.0))
    if not 0 <= jitter <= 1:
        raise PolicyFileError(f"{_JITTER}: must be a number from 0 to 1, got {jitter}; correct the file")
    return Contents(
        operations=operations,
        stages=_read_stages("stages", operations, data["stages"]),
        fill=read_numbers("fill", data["fill"])
        if isinstance(data["fill"], list)
        else read_number("fill", data["fill"]),
        classes=tuple(classes),
        class_stages=tuple(
            _read_stages(f"classes.{printable(name, 80)}", operations, part) for name, part in classes.items()
        ),
        network=read_network(operations, data["network"]) if "network" in data else None,
        magnitude_jitter=jitter,
    )


def _read_operation(name: str, description: Any) -> Operation:
    where = f"operations.{printable(name, 80)}"
    if name not in OPERATIONS:
        raise PolicyFileError(
            f"{where}: unknown operation {nearest(name, OPERATIONS)}; register an operation of your own with "
            "madao.ops.register before reading the file"
        )
    known = find(name)
    if known.range is None:
        check_members(where, description)
        return known
    check_members(where, description, required=("range", "signed", "unit"))
    if description["signed"] is not known.signed:
        raise PolicyFileError(
            f"{where}.signed: expected {json.dumps(known.signed)}, got {shown(description['signed'])}"
        )
    if not isinstance(description["unit"], str):
        raise PolicyFileError(f"{where}.unit: expected text, got {kind(description['unit'])}")
    span = description["range"]
    if not isinstance(span, list) or len(span) != 2:
        raise PolicyFileError(f"{where}.range: expected two numbers, got {shown(span)}")
    neutral, strongest = (read_number(f"{where}.range", bound) for bound in span)
    if neutral != known.range[0]:
        raise PolicyFileError(
            f"{where}.range: {name} changes nothing at {known.range[0]:g}, so its range must start there, "
            f"got {shown(span)}"
        )
    try:
        return known.limited(strongest)
    except ValueError as error:
        raise PolicyFileError(f"{where}.range: {error}") from None
