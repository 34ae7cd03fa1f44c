"""What comes of learning a policy: test error on CIFAR-10 beside the controls, over a few seeds.

    python benchmarks/methods.py --root FOLDER [--epochs 60] [--seeds 3] [--methods standard,uniform] [--output FILE]

WideResNet-28-2 at the settings of the recipe, but for the number of epochs. Controls: no policy, every operation alike
(uniform), TrivialAugment, the paper's estimator. Then influence on 2048 images every 120 steps, along v and without
training gradients (deflated); that with each further answer to greed: learn which and not how much, begin in the
second half, at averaged weights; and every 240 steps by the inverse of the Gauss-Newton matrix. What is in the output
already is not run again.
"""

import argparse
import dataclasses
import itertools
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import yaml

sys.path.insert(0, str(Path(__file__).parent / "speed"))
from cells import Cell, complete

from madao.cli.recipes import recipe_path
from madao.policy import Policy
from madao.training.config import OuterConfig, SpeedConfig, TrainConfig, from_plain
from madao.training.trainer import Trainer

ROOT = Path(__file__).parents[1]
LARGE = {
    "every": 120,
    "lr": 0.05,
    "batch_size": 512,
    "train_batch_size": 2048,
    "curvature_batch_size": 512,
    "pathwise_batch_size": 128,
}
INVERSE = {**LARGE, "solver": "gauss-newton", "steps": 10, "every": 240, "lr": 0.1}
METHODS: dict[str, dict[str, Any]] = {
    "standard": {"method": "standard"},
    "uniform": {"method": "uniform"},
    "trivialaugment": {"method": "trivialaugment"},
    "paper": {},
    "along v": {"outer": {**LARGE, "solver": "identity"}},
    "deflated": {"outer": LARGE},
    "deflated, which": {"outer": {**LARGE, "learn": "selection"}},
    "deflated, late": {"outer": LARGE, "late": True},
    "deflated, average": {"outer": {**LARGE, "average": 0.9}},
    "gauss-newton": {"outer": INVERSE},
}


def settings(name: str, seed: int, epochs: int, root: str, folder: str, compile: bool) -> TrainConfig:
    """Of one cell."""
    row = METHODS[name]
    config = from_plain(yaml.safe_load(recipe_path("cifar10-wrn-28-2").read_text()))
    outer = dataclasses.replace(config.outer, warmup=epochs / 10)  # the paper's 20 of 200
    if "outer" in row:
        outer = OuterConfig(**row["outer"], warmup=epochs / 2 if row.get("late") else None)
    return dataclasses.replace(
        config,
        data=dataclasses.replace(config.data, root=root),
        augment=dataclasses.replace(config.augment, method=row.get("method", "madao")),
        outer=outer,
        speed=SpeedConfig(compile=compile),
        epochs=epochs,
        seed=seed,
        evaluate_every=epochs,
        tensorboard=False,
        out=str(Path(folder) / "run"),
    )


def train(name: str, seed: int, epochs: int, root: str, compile: bool) -> Cell:
    """One cell."""
    with tempfile.TemporaryDirectory() as folder:
        trainer = Trainer(settings(name, seed, epochs, root, folder, compile), title=f"{name} {seed}")
        began = time.monotonic()
        result = trainer.fit()
        seconds = time.monotonic() - began
        found: Cell = {
            "test_error": result.test_error,
            "test_loss": result.test_loss,
            "validation_error": result.validation_error,
            "train_error": float((Path(folder) / "run/metrics.csv").read_text().split()[-1].split(",")[4]),
            "seconds": seconds,
        }
    policy = trainer.policy
    if isinstance(policy, Policy):
        names = [operation.name for operation in policy.operations]
        for kind in ("selection", "application", "magnitude"):
            values = getattr(policy, kind).mean(0).tolist()
            found[kind] = {operation: round(value, 4) for operation, value in zip(names, values, strict=True)}
    return found


def summary(cells: dict[str, Cell]) -> dict[str, Any]:
    """Of every method: the mean, what its seeds spread by, and the difference to `standard` for the same seeds."""
    errors: dict[str, dict[str, float]] = {}
    for name, cell in cells.items():
        method, seed = name.rsplit(" ", 1)
        errors.setdefault(method, {})[seed] = cell["test_error"]
    found = {}
    for method, by_seed in errors.items():
        values = list(by_seed.values())
        plain = errors.get("standard", {})
        pairs = [error - plain[seed] for seed, error in by_seed.items() if seed in plain]
        found[method] = {
            "runs": len(values),
            "mean_test_error": statistics.mean(values),
            "deviation": statistics.stdev(values) if len(values) > 1 else None,
            "mean_difference_to_standard": statistics.mean(pairs) if pairs else None,
        }
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", required=True, help="where CIFAR-10 lies")
    parser.add_argument("--epochs", type=int, default=60)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument(
        "--methods", default=",".join(name.replace(", ", "+") for name in METHODS), help="+ for a comma"
    )
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--no-compile", action="store_true")
    parser.add_argument("--output", metavar="FILE", type=Path, default=ROOT / "benchmarks/results/methods.json")
    arguments = parser.parse_args()
    methods = [name.replace("+", ", ") for name in arguments.methods.split(",")]
    cells = {
        f"{method} {seed}": (method, seed, arguments.epochs, arguments.root, not arguments.no_compile)
        for seed, method in itertools.product(range(arguments.seeds), methods)
    }
    results = complete(arguments.output, arguments.epochs, cells, train, summary, arguments.jobs)
    for name, row in results["summary"].items():
        print(f"{name:<20}", json.dumps(row))


if __name__ == "__main__":
    main()
