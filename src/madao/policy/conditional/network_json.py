"""The network of a policy in its JSON file."""

import json
from collections.abc import Sequence
from typing import Any

from madao.errors import PolicyFileError
from madao.ops import Operation
from madao.policy.conditional.features import NAMES
from madao.policy.conditional.network import Network, Outputs
from madao.policy.json_fields import (
    check_members,
    read_list,
    read_number,
    read_numbers,
    read_stages,
    write_members,
    write_stages,
)


def write_network(operations: Sequence[Operation], network: Network) -> str:
    """Return a JSON object: features by name, one hidden unit per line, and outputs in the layout of stages."""
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
        f'{{\n    "features": {write_members(seen, 4)},\n    "units": [\n      {listed}\n    ],\n'
        f'    "stages": {write_stages(operations, network.stages, 4)}\n  }}'
    )


def read_network(operations: Sequence[Operation], data: Any) -> Network:
    """Return the network of a policy file."""
    check_members("network", data, required=("features", "units", "stages"))
    seen = data["features"]
    check_members("network.features", seen, required=NAMES)
    for name in NAMES:
        check_members(f"network.features.{name}", seen[name], required=("centre", "scale"))
    centre, scale = (
        tuple(read_number(f"network.features.{name}.{kind}", seen[name][kind]) for name in NAMES)
        for kind in ("centre", "scale")
    )
    units = {f"network.units[{i}]": unit for i, unit in enumerate(read_list("network.units", data["units"], "objects"))}
    for where, unit in units.items():
        check_members(where, unit, required=("bias", "offset", "weights"))
    bias, offset = (
        tuple(read_number(f"{where}.{name}", unit[name]) for where, unit in units.items())
        for name in ("bias", "offset")
    )
    weights = tuple(read_numbers(f"{where}.weights", unit["weights"]) for where, unit in units.items())
    rows = read_stages("network.stages", operations, data["stages"], read_numbers)
    outputs = tuple(tuple(Outputs(*row) for row in stage) for stage in rows)
    try:
        return Network(centre, scale, weights, bias, offset, outputs)
    except ValueError as error:
        raise PolicyFileError(f"{error}; correct the file or write it again from the policy") from None
