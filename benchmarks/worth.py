"""Measure what each operation is worth at the end of training on few photos, and whether its influence predicts it.

    python benchmarks/worth.py --root FOLDER [--pairs 18] [--seeds 3] [--device cuda] [--jobs 2] [--output FILE]

The worth needs no gradient. Trainings come in pairs, each pair with its own images and seed: one uses seven operations,
equally likely, the other the other seven. An operation's worth is its least-squares share of the difference in test
error.

Influences come from other trainings, under the uniform policy, at some epochs, as in `hardness.py`: along v; without 16
gradients of batches (`Deflated`); the same, corrected for the loss (`SameLoss`); without 128 gradients of eight images;
and by `GaussNewton`. A control is the negative loss of an operation's images. The script prints the rank correlation of
each with the worth. Cells that the output already has are not run again.
"""

import statistics
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy import stats

sys.path.insert(0, str(Path(__file__).parent / "speed"))
from cells import Cell, complete
from hardness import Network, Vector
from looks import OPERATIONS, RESULTS, Some, Watched, options, quarters, settings

from madao.hypergrad import ForwardOverReverse, GaussNewton, System
from madao.training.builders.run import build_run


def halves(pairs: int) -> list[list[str]]:
    """Return half of the operations for each pair: of many random halves, the one that adds most to earlier pairs."""
    generator, count = np.random.default_rng(0), len(OPERATIONS)
    known = 1e-3 * np.eye(count)
    found = []
    for _ in range(pairs):
        tried = [generator.permutation(count) < count // 2 for _ in range(200)]
        signs = [2.0 * half - 1 for half in tried]
        best = min(range(len(tried)), key=lambda i: np.trace(np.linalg.inv(known + np.outer(signs[i], signs[i]))))
        known += np.outer(signs[best], signs[best])
        found.append([name for name, within in zip(OPERATIONS, tried[best], strict=True) if within])
    return found


def train(without: list[str], seed: int, epochs: int, root: str, device: str, looks: tuple[int, ...] = ()) -> Cell:
    """Train, and measure every operation's influence at some epochs."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        config = settings(root, folder, seed, epochs, device, method="uniform", exclude=without)
        title = f"{len(OPERATIONS) - len(without)} operations, seed {seed}"
        trainer = Watched(build_run(config, title=title), looks, further)
        result = trainer.fit()
    found: Cell = {"without": without, "test_error": result.test_error, "test_loss": result.test_loss}
    return found | ({"influence": trainer.looks} if trainer.looks else {})


def further(network: Network, v: Vector, some: Some) -> dict[str, Vector]:
    """Return directions besides that of `Deflated`."""
    curvature = ForwardOverReverse().gauss_newton(network, tuple(network.params.values()), some(500))
    return {
        "v": v,
        "without 128 gradients of 8": network.deflated(v, [some(8) for _ in range(128)]),
        "Gauss-Newton, 10 steps": GaussNewton(10).solve(System(v, gauss_newton=curvature)).vector,
    }


def worth(cells: Mapping[str, Cell]) -> dict[str, dict[str, float]]:
    """Return the points of test error by which each operation lowers it, and half of the 95 % interval.

    A pair's errors differ by Σ s_i w_i, s = 1 for what is in its first half and −1 for the others. Since each half has
    seven, only differences between operations can be known: Σ w = 0.
    """
    pairs = [key.removesuffix(" a") for key in cells if key.endswith(" a") and f"{key.removesuffix(' a')} b" in cells]
    free = len(pairs) - (len(OPERATIONS) - 1)
    if free < 1:
        return {}
    both = [[cells[f"{pair} {which}"] for which in "ab"] for pair in pairs]
    signs = np.array([[1.0 - 2 * (name in first["without"]) for name in OPERATIONS] for first, _ in both])
    gains = 100 * np.array([second["test_error"] - first["test_error"] for first, second in both])
    inverse = np.linalg.pinv(signs)
    found = inverse @ gains
    noise = float(np.sum((gains - signs @ found) ** 2)) / free
    widths = stats.t.ppf(0.975, free) * np.sqrt(noise * np.sum(inverse**2, axis=1))
    return {
        name: {"points": float(points), "half_width": float(width)}
        for name, points, width in zip(OPERATIONS, found, widths, strict=True)
    }


def summary(cells: dict[str, Cell]) -> dict[str, Any]:
    """Return each operation's worth, and how well its influence, averaged over seeds, predicts it."""
    truth = worth(cells)
    looks = [cell["influence"] for cell in cells.values() if "influence" in cell]
    found: dict[str, Any] = {"worth": truth, "rank_correlation": {}}
    for epoch, direction in _common(looks) if truth else ():
        means = [statistics.mean(look[epoch][direction][name] for look in looks) for name in OPERATIONS]
        rank = stats.spearmanr(means, [truth[name]["points"] for name in OPERATIONS])
        found["rank_correlation"][f"{direction}, epoch {epoch}"] = {"value": rank.statistic, "p": rank.pvalue}
    return found


def _common(looks: Sequence[Mapping[str, Mapping[str, Any]]]) -> list[tuple[str, str]]:
    """Return the epochs and directions that all of them have."""
    return [
        (epoch, direction)
        for epoch, rows in (looks[0].items() if looks else ())
        for direction in rows
        if all(direction in look.get(epoch, ()) for look in looks)
    ]


def main() -> None:
    parser = options(__doc__, "worth.json", seeds=3)
    parser.add_argument(
        "--pairs",
        type=int,
        default=18,
        help="number of pairs of trainings; influences come from --seeds other trainings",
    )
    arguments = parser.parse_args()
    if arguments.first and arguments.output.resolve() == (RESULTS / "worth.json").resolve():
        parser.error("policies follow the looks in worth.json; give another --output for other photos")
    epochs, first, where = arguments.epochs, arguments.first, (arguments.root, arguments.device)
    wanted: dict[str, tuple[Any, ...]] = {
        f"all {seed}": ([], seed, epochs, *where, quarters(epochs)) for seed in range(first, first + arguments.seeds)
    }
    for pair, chosen in enumerate(halves(arguments.pairs), first):
        wanted[f"{pair} a"] = ([name for name in OPERATIONS if name not in chosen], pair, epochs, *where)
        wanted[f"{pair} b"] = (chosen, pair, epochs, *where)
    results = complete(arguments.output, epochs, wanted, train, summary, arguments.jobs)
    for name, row in sorted(results["summary"]["worth"].items(), key=lambda item: -item[1]["points"]):
        print(f"{name:<14}{row['points']:+6.2f} ± {row['half_width']:.2f} points")
    for name, rank in results["summary"]["rank_correlation"].items():
        print(f"{name:<40}{rank['value']:+.2f} (p = {rank['p']:.2f})")


if __name__ == "__main__":
    main()
