"""Whether policies that are learned, or made of what influences say of operations, are better ones on few photos.

    python benchmarks/few_photos.py --root FOLDER [--seeds 9] [--jobs 2] [--output FILE]

Trainings as in `worth.py`, each seed of other images. Policies that stay as they are:

    uniform         all operations alike, at 0.62 of their ranges, where policies start
    gentle          the same at 0.1
    followed        operation i e^z times as likely as the others, z being its influence as `Deflated` has it, in
                    deviations over operations, mean over all looks that worth.json has
    beyond          the same of influences beyond the loss, as `SameLoss` has them
    easy            the same of the loss alone, the less the likelier: a control
    trivialaugment
    randaugment     at the magnitude of three whose validation error is lowest for the first seed

And policies that are learned while the network trains:

    learned         as `madao train` does it
    same-loss       the same, influences compared with those of images that are as hard
    pulled          the same, drawn back to the start
    strength        the same, how often and how strongly only, all operations alike

Seeds begin after those whose trainings gave the influences. What is in the output already is not run again.
"""

import argparse
import dataclasses
import json
import math
import statistics
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parent / "speed"))
from cells import Cell, complete
from worth import BEYOND, DEFLATED, EASE, EPOCHS, OPERATIONS, settings

from madao import Policy
from madao.report.compare import Interval, difference, interval
from madao.training.trainer import Trainer

ROOT = Path(__file__).parents[1]
FOLLOWED = {"followed": DEFLATED, "beyond": BEYOND, "easy": EASE}
FIXED = ("gentle", "uniform", *FOLLOWED, "trivialaugment")
LEARNED: dict[str, dict[str, Any]] = {
    "same-loss": {"baseline": "same-loss"},
    "learned": {},
    "pulled": {"pull": 1.0},
    "strength": {"learn": "strength"},
}
"""With what differs from the defaults."""
MAGNITUDES = (0.39, 0.79, 0.06)
"""Those that `madao compare` tries."""
FIRST = 3


def scores(looks: Sequence[Mapping[str, float]]) -> list[float]:
    """Of every operation, the mean of looks; deviation 1 over operations, in every look and in the mean."""
    every = [_standardised([look[name] for name in OPERATIONS]) for look in looks]
    return _standardised([statistics.fmean(of_one) for of_one in zip(*every, strict=True)])


def _standardised(values: Sequence[float]) -> list[float]:
    mean, deviation = statistics.fmean(values), statistics.pstdev(values)
    return [(value - mean) / deviation for value in values]


def followed(worth: Mapping[str, Any], direction: str) -> Policy:
    """The policy that follows influences in the results of `worth.py`, alike at both stages."""
    of_trainings = (cell["influence"] for cell in worth["cells"].values() if "influence" in cell)
    looks = [rows[direction] for training in of_trainings for rows in training.values()]
    policy = Policy()
    with torch.no_grad():
        policy.selection_logits.copy_(torch.tensor(scores(looks)))
    return policy


def train(method: str, magnitude: float, seed: int, epochs: int, root: str, worth: Mapping[str, Any]) -> Cell:
    """One cell."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        given: dict[str, Any] = {"method": method, "magnitude": magnitude}
        if method == "gentle":
            given |= {"method": "uniform", "start": 0.1}
        elif method in FOLLOWED:
            given["method"] = str(Path(folder) / "policy.json")
            followed(worth, FOLLOWED[method]).spec().save(given["method"])
        elif method in LEARNED:
            given["method"] = "madao"
        config = settings(root, folder, [], seed, epochs)
        augment = dataclasses.replace(config.augment, **given)
        outer = dataclasses.replace(config.outer, **LEARNED.get(method, {}))
        result = Trainer(dataclasses.replace(config, augment=augment, outer=outer), title=f"{method} {seed}").fit()
    return {"test_error": result.test_error, "validation_error": result.validation_error}


def chosen(cells: Mapping[str, Cell]) -> float:
    """RandAugment's magnitude."""
    return min(MAGNITUDES, key=lambda each: cells[f"randaugment {each} {FIRST}"]["validation_error"])


def summary(cells: dict[str, Cell]) -> dict[str, Any]:
    """Of every method in points: mean and half of the 95 % interval, alone and of the differences to the others."""
    by_method: dict[str, dict[int, float]] = {}
    for key, cell in cells.items():
        method, seed = key.rsplit(" ", 1)
        by_method.setdefault(method, {})[int(seed)] = 100 * cell["test_error"]
    return {
        method: {
            "test_error": _plain(interval([*errors.values()])),
            **{
                f"minus {other}": _plain(found)
                for other, theirs in by_method.items()
                if other != method and (found := difference(errors, theirs).mean) is not None
            },
        }
        for method, errors in by_method.items()
    }


def _plain(found: Interval) -> dict[str, float]:
    width = {} if found.half_width is None else {"half_width": found.half_width}
    return {"seeds": found.count, "mean": found.mean, **width}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", required=True, help="where CIFAR-10 lies")
    parser.add_argument("--epochs", type=int, default=EPOCHS)
    parser.add_argument("--seeds", type=int, default=9, help=f"how many, from {FIRST} on")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--output", metavar="FILE", type=Path, default=ROOT / "benchmarks/results/few-photos.json")
    arguments = parser.parse_args()
    epochs, root = arguments.epochs, arguments.root
    worth = json.loads((ROOT / "benchmarks/results/worth.json").read_text())

    def run(wanted: Mapping[str, tuple[str, float, int]]) -> dict[str, Any]:
        given = {name: (*cell, epochs, root, worth) for name, cell in wanted.items()}
        return complete(arguments.output, epochs, given, train, summary, arguments.jobs)

    trials = {f"randaugment {each} {FIRST}": ("randaugment", each, FIRST) for each in MAGNITUDES}
    best, seeds = chosen(run(trials)["cells"]), range(FIRST, FIRST + arguments.seeds)
    cells: dict[str, tuple[str, float, int]] = {}
    for seed in seeds:  # so that what there is can be compared from the start
        cells |= {f"{method} {seed}": (method, 0.0, seed) for method in (*FIXED, *LEARNED)}
        cells[f"randaugment {best} {seed}"] = ("randaugment", best, seed)
    for method, row in run(cells)["summary"].items():
        told = (f"{name} {of['mean']:+.2f} ± {of.get('half_width', math.nan):.2f}" for name, of in row.items())
        print(f"{method:<18}{row['test_error']['seeds']} seeds, points: {', '.join(told)}")


if __name__ == "__main__":
    main()
