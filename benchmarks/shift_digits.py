"""Test whether default settings learn: digits with shifted validation and test images, without any setting of `outer`.

    python benchmarks/shift_digits.py [--seeds 10] [--first 0] [--shifts rotate,none] [--jobs 2] [--output FILE]

Each cell is a training as by `madao train --data.name digits --data.shift SHIFT --epochs 60`, with a learned policy or
with the uniform policy as its control. Cells that the output already has are not run again. The script reports in how
many runs the operation that imitates the shift is the most frequent, and in how many the test error is below that of
the uniform policy with the same seed. With no shift (`none`), it reports the difference of the errors.
"""

import argparse
import itertools
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parent / "speed"))
from cells import complete

from madao.cli.demo import family_share
from madao.config.train_config import AugmentConfig, DataConfig, TrainConfig
from madao.data.datasets.synthetic_shift import SHIFTS
from madao.training.builders.run import build_run
from madao.training.trainer import Trainer

ROOT = Path(__file__).parents[1]
METHODS = ("learned", "uniform")


def train(method: str, shift: str, seed: int, epochs: int) -> dict[str, Any]:
    """One cell."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        config = TrainConfig(
            data=DataConfig(name="digits", shift=shift),  # type: ignore[arg-type]
            augment=AugmentConfig(method=method),
            epochs=epochs,
            evaluate_every=epochs,  # which changes nothing but the time
            checkpoint_every=epochs,
            logger="none",
            device="cpu",
            seed=seed,
            out=str(Path(folder) / "run"),
        )
        started = time.process_time()
        result = Trainer(build_run(config, title=f"{method} {shift} {seed}")).fit()
    found: dict[str, Any] = {"test_error": result.test_error, "cpu_seconds": round(time.process_time() - started, 1)}
    if method == "learned":
        found["selection"] = result.policy
        if shift != "none":
            found["share"], _, found["rank"] = family_share(result, shift)
    return found


def verdicts(cells: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """For each shift, and for all shifts together."""
    found: dict[str, Any] = {}
    for shift in SHIFTS:
        pairs = [
            (cell, cells[f"uniform {shift} {name.split()[2]}"])
            for name, cell in cells.items()
            if name.startswith(f"learned {shift} ") and f"uniform {shift} {name.split()[2]}" in cells
        ]
        if pairs:
            found[shift] = _verdict(pairs, shift != "none")
    rows = [row for shift, row in found.items() if shift != "none"]
    if rows:
        found["all shifts"] = {name: sum(row[name] for row in rows) for name in ("runs", "first", "below_uniform")}
    return found


def _verdict(pairs: list[tuple[dict[str, Any], dict[str, Any]]], shifted: bool) -> dict[str, Any]:
    errors = [(learned["test_error"], uniform["test_error"]) for learned, uniform in pairs]
    difference = [100 * (learned - uniform) for learned, uniform in errors]
    row: dict[str, Any] = {
        "runs": len(pairs),
        "median_test_error": statistics.median(learned for learned, _ in errors),
        "median_test_error_uniform": statistics.median(uniform for _, uniform in errors),
        "below_uniform": sum(learned < uniform for learned, uniform in errors),
        "mean_difference_points": statistics.mean(difference),
        "cpu_time_ratio": statistics.median(learned["cpu_seconds"] / other["cpu_seconds"] for learned, other in pairs),
        "largest_selection": statistics.median(max(learned["selection"].values()) for learned, _ in pairs),
    }
    if len(pairs) > 1:
        row["deviation_points"] = statistics.stdev(difference)
    if shifted:
        row["first"] = sum(learned["rank"] == 1 for learned, _ in pairs)
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--shifts", default=",".join(SHIFTS))
    parser.add_argument("--epochs", type=int, default=60)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--output", metavar="FILE", type=Path, default=ROOT / "benchmarks/results/shift-digits.json")
    arguments = parser.parse_args()
    seeds = range(arguments.first, arguments.first + arguments.seeds)
    wanted = itertools.product(seeds, arguments.shifts.split(","), METHODS)
    cells = {f"{method} {shift} {seed}": (method, shift, seed, arguments.epochs) for seed, shift, method in wanted}
    results = complete(arguments.output, arguments.epochs, cells, train, verdicts, arguments.jobs)
    for name, row in results["summary"].items():
        print(f"{name:<12}", json.dumps(row))


if __name__ == "__main__":
    main()
