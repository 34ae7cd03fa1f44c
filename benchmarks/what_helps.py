"""Measure without a gradient what each operation is worth: train digits with more of it, and nothing planted.

    python benchmarks/what_helps.py [--seeds 4] [--jobs 2] [--output FILE]

Each cell is a training of `madao demo` under a fixed policy that draws one operation four times as often as at the
start. The result is the loss on validation and test digits together: both come from the same distribution, and nothing
was chosen by them. For comparison the script prints how often learned policies select each operation, over the seeds of
`known-answers.json`. Cells that the output already has are not run again.
"""

import argparse
import dataclasses
import itertools
import json
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy import stats

sys.path.insert(0, str(Path(__file__).parent / "speed"))
from cells import complete, current_words

from madao import PolicySpec, Uniform
from madao.cli.demo import demo_config
from madao.training.builders.run import build_run
from madao.training.run.directory import RunDirectory
from madao.training.trainer import Trainer

ROOT = Path(__file__).parents[1]
OPERATIONS = [operation.name for operation in Uniform().operations]
SHARE = 4 / len(OPERATIONS)
EPOCHS = 72


def tilted(name: str) -> PolicySpec:
    """Return a policy in which one operation is likelier than the others; for `none`, the uniform policy."""
    spec = Uniform().spec()
    if name == "none":
        return spec
    rest = (1 - SHARE) / (len(OPERATIONS) - 1)
    stages = tuple(
        tuple(
            dataclasses.replace(entry, selection=SHARE if operation.name == name else rest)
            for operation, entry in zip(spec.operations, stage, strict=True)
        )
        for stage in spec.stages
    )
    return dataclasses.replace(spec, stages=stages)


def train(operation: str, seed: int, epochs: int) -> dict[str, Any]:
    """Return loss and error on the digits outside training."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        policy = Path(folder) / "policy.json"
        tilted(operation).save(policy)
        config = demo_config("uniform", "none", seed, epochs, Path(folder))
        augment = dataclasses.replace(config.augment, method=str(policy))
        config = dataclasses.replace(config, augment=augment, evaluate_every=epochs)
        result = Trainer(build_run(config, title=f"{operation} {seed}")).fit()
        last = RunDirectory(Path(result.out)).read_metrics()[-1]
    assert result.test_loss is not None
    assert result.test_error is not None
    assert result.validation_error is not None
    return {
        "loss": (float(last["validation_loss"]) + result.test_loss) / 2,  # as many digits each
        "error": (result.validation_error + result.test_error) / 2,
    }


def verdicts(cells: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Return each operation's difference in loss to the uniform policy, by seed, and its share in learned policies."""
    losses = {tuple(key.split()): cell["loss"] for key, cell in cells.items()}
    known = json.loads((ROOT / "benchmarks/results/known-answers.json").read_text())["cells"]
    learned = [cell["selection"] for key, cell in known.items() if current_words(key).startswith("learned none ")]
    found: dict[str, Any] = {}
    for name in OPERATIONS:
        seeds = [seed for other, seed in losses if other == name and ("none", seed) in losses]
        if not seeds:
            continue
        changes = [100 * (losses[name, seed] / losses["none", seed] - 1) for seed in seeds]
        error = statistics.stdev(changes) / len(changes) ** 0.5 if len(changes) > 1 else None
        found[name] = {
            "loss_change_percent": statistics.mean(changes),
            "standard_error": error,
            "seeds": len(seeds),
            "learned_share": statistics.mean(policy[name] for policy in learned),
        }
    if len(found) > 2:
        pairs = np.array([(row["loss_change_percent"], row["learned_share"]) for row in found.values()])
        rank = stats.spearmanr(pairs[:, 0], pairs[:, 1])
        found["rank correlation"] = {"value": float(rank.statistic), "p": float(rank.pvalue), "policies": len(learned)}
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=4)
    parser.add_argument("--epochs", type=int, default=EPOCHS)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--output", metavar="FILE", type=Path, default=ROOT / "benchmarks/results/what-helps.json")
    arguments = parser.parse_args()
    wanted = itertools.product(range(arguments.seeds), ["none", *OPERATIONS])
    cells = {f"{name} {seed}": (name, seed, arguments.epochs) for seed, name in wanted}
    results = complete(arguments.output, arguments.epochs, cells, train, verdicts, arguments.jobs)
    for name, row in results["summary"].items():
        print(f"{name:<20}", json.dumps(row))


if __name__ == "__main__":
    main()
