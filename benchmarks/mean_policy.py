"""Write a policy file with the mean of a learned policy over the second half of its training, for other trainings.

    python benchmarks/mean_policy.py benchmarks/results/paper-cifar10-wrn-28-2.json "deflated 0" policy.json

The mean is over the epochs in the record, of probabilities and of magnitudes as fractions of their ranges. Records with
more cells have fewer epochs. If a record only has the end of a training, as for all seeds but the first, the file holds
the policy at the end.
"""

import argparse
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from madao import Policy
from madao.config.aliases import current_cell, current_record


def mean_policy(way: Mapping[str, Any], settings: Mapping[str, Any]) -> Policy:
    """Of a cell's `policy`, and of its settings."""
    stages = len(way["selection"][-1])
    if stages != settings["augment.stages"]:
        raise SystemExit(f"the record has the mean of {settings['augment.stages']} stages, not each of them")
    policy = Policy(stages=stages, magnitude_jitter=settings.get("augment.magnitude_jitter", 0.0))
    names = [operation.name for operation in policy.operations]
    if way["operations"] != names:
        raise SystemExit(f"the record has the operations {way['operations']}, not {names}")
    later = [index for index, epoch in enumerate(way["epochs"]) if epoch >= way["epochs"][-1] / 2]
    selection, application, magnitude = (
        torch.tensor([way[kind][index] for index in later]).mean(0)
        for kind in ("selection", "application", "magnitude")
    )
    strong = [index for index, operation in enumerate(policy.operations) if operation.has_magnitude]
    with torch.no_grad():
        policy.selection_logits.copy_(selection.log())
        policy.application_logits.copy_(application.logit())
        policy.magnitude_logits.copy_(magnitude[:, strong].logit())
    return policy


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("record", type=Path, help="a record written by madao compare --export")
    parser.add_argument("cell", help="method and seed")
    parser.add_argument("policy", type=Path, help="the file to write, for --augment.method")
    arguments = parser.parse_args()
    record = current_record(json.loads(arguments.record.read_text()))
    cells = record["cells"]
    learned = [name for name, cell in cells.items() if "policy" in cell]
    if (name := current_cell(arguments.cell)) not in learned:
        parser.error(f"{arguments.cell!r} has no policy in {arguments.record}; there are: {', '.join(learned)}")
    cell = cells[name]
    policy = mean_policy(cell["policy"], record["settings"] | cell["settings"])
    policy.spec().save(arguments.policy)
    print(policy.spec())


if __name__ == "__main__":
    main()
