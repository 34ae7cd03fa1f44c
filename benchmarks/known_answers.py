"""Test whether the policy finds a planted shift: digits with shifted validation and test images, over many seeds.

    python benchmarks/known_answers.py [--seeds 10] [--methods learned,uniform,paper] [--jobs 2] [--output FILE]

Each cell is a training of `madao demo`. Methods are the learned policy with the default settings, the solver
gauss-newton, the uniform policy, and the paper's estimator and solver. Cells that the output already has are not run
again, so the table can grow. The script reports in how many runs the planted family is the most frequent, and in how
many the test error is below that of `uniform` with the same seed. With nothing planted (`none`), it reports the largest
selection probability; all start at 1/14.

With `--planted rotate-or-brightness --methods learned,class,uniform`, the halves of the classes have different shifts,
and `class` is a policy for each class. The script reports in how many halves the planted operation is the most
frequent, and more frequent than in the other half. `--planted by-tone --methods learned,image,uniform` does the same
for a policy for each image.
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

import torch

sys.path.insert(0, str(Path(__file__).parent / "speed"))
from cells import complete

from madao.cli.demo import demo_config, family_share, half_shares, methods
from madao.config.train_config import OuterConfig
from madao.data.datasets.synthetic_shift import PLANTED, SHIFTS
from madao.training.builders.run import build_run
from madao.training.trainer import Trainer

ROOT = Path(__file__).parents[1]
METHODS = ("learned", "gauss-newton", "class", "image", "uniform", "base", "paper")


def train(method: str, planted: str, seed: int, epochs: int) -> dict[str, Any]:
    """One cell."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        name = "learned" if method in ("paper", "gauss-newton") else method
        config = demo_config(name, planted, seed, epochs, Path(folder))  # type: ignore[arg-type]
        config = dataclasses.replace(config, evaluate_every=epochs)
        if method == "paper":
            config = dataclasses.replace(config, outer=as_in_the_paper(config.outer))
        if method == "gauss-newton":
            outer = dataclasses.replace(config.outer, solver="gauss-newton", steps=10)
            config = dataclasses.replace(config, outer=outer)
        result = Trainer(build_run(config, title=f"{method} {planted} {seed}")).fit()
        conditional = method in ("class", "image") and method in methods(planted)
        shares = half_shares(result, planted) if conditional else []
    found: dict[str, Any] = {"test_error": result.test_error, "validation_error": result.validation_error}
    if result.policy:
        found["selection"] = result.policy
        if planted != "none":
            found["share"], _, found["rank"] = family_share(result, planted)
    if result.classes:
        found["classes"] = result.classes
    if shares:
        found["halves"] = {name: {"here": a, "there": b, "rank": rank} for name, a, b, rank in shares}
    return found


def as_in_the_paper(outer: OuterConfig) -> OuterConfig:
    """The paper's estimator, as often and on as many images."""
    return OuterConfig(
        budget=0.0,
        estimator="relaxed",
        solver="neumann",
        scale=1e-3,
        steps=5,
        tolerance=0.01,
        model_mode="train",
        warmup_augment="none",
        optimizer="rmsprop",
        lr=0.01,
        every=outer.every,
        batch_size=outer.batch_size,
        train_batch_size=outer.train_batch_size,
        curvature_batch_size=64,
    )


def verdicts(cells: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Of every method that learns, for each shift."""
    errors = {tuple(key.split()): cell["test_error"] for key, cell in cells.items()}
    found: dict[str, Any] = {}
    for method, planted in itertools.product(METHODS, PLANTED):
        mine = {seed: error for (m, p, seed), error in errors.items() if (m, p) == (method, planted)}
        if not mine:
            continue
        row: dict[str, Any] = {"runs": len(mine), "median_test_error": statistics.median(mine.values())}
        pairs = [(error, errors.get(("uniform", planted, seed))) for seed, error in mine.items()]
        known = [(error, other) for error, other in pairs if other is not None]
        if known and method != "uniform":
            row |= {"compared": len(known), "below_uniform": sum(error < other for error, other in known)}
        selections = [cells[f"{method} {planted} {seed}"] for seed in mine]
        if "rank" in selections[0]:
            row["first"] = sum(cell["rank"] == 1 for cell in selections)
        if "halves" in selections[0]:
            halves = [half for cell in selections for half in cell["halves"].values()]
            row["halves"] = len(halves)
            row["halves_first"] = sum(half["rank"] == 1 for half in halves)
            row["halves_apart"] = sum(half["here"] > half["there"] for half in halves)
        if "selection" in selections[0]:
            row["largest_selection"] = statistics.median(max(cell["selection"].values()) for cell in selections)
        found[f"{method} {planted}"] = row
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--methods", default="learned,uniform,paper")
    parser.add_argument("--planted", default=",".join(SHIFTS))
    parser.add_argument("--epochs", type=int, default=72)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--output", metavar="FILE", type=Path, default=ROOT / "benchmarks/results/known-answers.json")
    arguments = parser.parse_args()
    wanted = itertools.product(range(arguments.seeds), arguments.methods.split(","), arguments.planted.split(","))
    cells = {
        f"{method} {planted} {seed}": (method, planted, seed, arguments.epochs) for seed, method, planted in wanted
    }
    results = complete(arguments.output, arguments.epochs, cells, train, verdicts, arguments.jobs)
    for name, row in results["summary"].items():
        print(f"{name:<20}", json.dumps(row))


if __name__ == "__main__":
    main()
