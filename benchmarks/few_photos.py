"""Compare policies on few photos: fixed ones, learned ones, and ones made from measured influences.

    python benchmarks/few_photos.py --root FOLDER [--methods uniform,beyond] [--first 3] [--seeds 9] [--device cuda]
                                    [--jobs 2] [--output FILE]

Trainings are those of `looks.py`. Each seed draws another 2,000 photos; the test images are the same. A *look* is one
measurement of all operations' influence at one epoch of one training. Fixed policies:

    base            crop, flip and Cutout only
    uniform         all operations equally likely, at 0.62 of their ranges, as policies start; with looks on the way
    moderate        the same at 0.3
    gentle          the same at 0.1
    varied          the same at anything up to 0.62, drawn for each image
    pooled-file     the policy in paper/pooled.json, from looks at seeds 18 to 33 and 100 to 107, for other seeds
    trivialaugment
    randaugment     at the magnitude of three with the lowest validation error for seed 3

Policies that follow looks: operation i is e^z times as likely as in `uniform`. z is its influence in deviations over
operations, averaged over looks:

    followed        influences by `Deflated`, from all looks in worth.json: three trainings on other photos
    beyond          influences by `SameLoss`, from the same looks
    easy            the negative loss instead of influence, from the same looks: a control
    looked          as beyond, from looks at a training on the same photos, namely `uniform`
    thrice          as looked, from the second halves of three such trainings that divide the photos in other ways
    pooled          as thrice, from all trainings of other seeds with looks that the output has by then

Policies learned while the network trains:

    learned         as `madao train` learns it
    same-loss       the same, with the baseline `SameLoss`
    pulled          the same as learned, pulled back to the start
    strength        the same as learned, but only application and magnitude; operations stay equally likely
    learned-all     as learned, with few outer steps on all photos
    same-loss-all   as same-loss, with few outer steps on all photos

Cells that the output already has are not run again.
"""

import dataclasses
import json
import math
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parent / "speed"))
from cells import Cell, complete
from looks import (
    BEYOND,
    DEFLATED,
    EASE,
    RESULTS,
    Watched,
    all_looks,
    divided_anew,
    following,
    looks_at,
    options,
    quarters,
    settings,
)

from madao.report.compare import Interval, difference, interval
from madao.training.builders.run import build_run
from madao.training.splits import load_splits

FIXED: dict[str, dict[str, Any]] = {
    "base": {},
    "uniform": {},
    "moderate": {"method": "uniform", "init_magnitude": 0.3},
    "gentle": {"method": "uniform", "init_magnitude": 0.1},
    "varied": {"method": "uniform", "magnitude_jitter": 1.0},
    "pooled-file": {"method": str(Path(__file__).parent / "paper/pooled.json")},
    "trivialaugment": {},
}
"""Fixed methods, with the settings that differ from those of the method of the same name."""
AGAIN = {"again 1": 1, "again 2": 2}
"""Methods as `uniform` with other divisions of the photos, for looks."""
OF_OTHERS = {"followed": DEFLATED, "beyond": BEYOND, "easy": EASE}
"""The influence that each method follows."""
WATCHED = ("uniform", *AGAIN)
"""The methods with looks on the way."""
OF_ITS_OWN = {"looked": ("uniform",), "thrice": WATCHED}
"""The trainings whose looks each method uses."""
POOLED = "pooled"
FOLLOWING = (*OF_OTHERS, *OF_ITS_OWN, POOLED)
_ALL = {
    "every": 20,
    "batch_size": 1000,
    "train_batch_size": 1000,
    "curvature_batch_size": 64,
    "pathwise_batch_size": 256,
}
LEARNED: dict[str, dict[str, Any]] = {
    "learned": {},
    "same-loss": {"baseline": "same-loss"},
    "pulled": {"init_decay": 1.0},
    "strength": {"learn": "strength"},
    "learned-all": _ALL,
    "same-loss-all": {"baseline": "same-loss", **_ALL},
}
"""Learned methods, with the settings that differ from the defaults."""
TUNED = "randaugment"
METHODS = (*FIXED, *FOLLOWING, *LEARNED, TUNED)
MAGNITUDES = (0.39, 0.79, 0.06)
"""The magnitudes that `madao compare` tries."""
FIRST = 3
"""worth.json has looks at seeds 0 to 2."""


def train(
    method: str, seed: int, epochs: int, root: str, device: str, magnitude: float, looks: Sequence[Mapping[str, float]]
) -> Cell:
    """Train one cell. `looks` is for methods that follow looks."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        augment: dict[str, Any] = {"method": method, "magnitude": magnitude} | FIXED.get(method, {})
        if method in AGAIN:
            augment["method"] = "uniform"
        elif method in LEARNED:
            augment["method"] = "learned"
        elif method in FOLLOWING:
            augment["method"] = str(Path(folder) / "policy.json")
            following(looks).spec().save(augment["method"])
        config = settings(root, folder, seed, epochs, device, **augment)
        config = dataclasses.replace(config, outer=dataclasses.replace(config.outer, **LEARNED.get(method, {})))
        splits = None
        if number := AGAIN.get(method):
            splits = divided_anew(load_splits(config.data), 7919 * seed + number)
            config = dataclasses.replace(config, seed=seed + 5000 * (1 + number))
        at = quarters(epochs) if method in WATCHED else ()
        trainer = Watched(build_run(config, splits, f"{method} {seed}"), at)
        result = trainer.fit()
    found: Cell = {"test_error": result.test_error, "validation_error": result.validation_error}
    found |= {"looks": len(looks)} if looks else {}
    return found | ({"influence": trainer.looks} if trainer.looks else {})


def looks_for(
    method: str, seed: int, epochs: int, cells: Mapping[str, Cell], worth: Mapping[str, Any]
) -> list[Mapping[str, float]]:
    """Return the looks that a method follows: in the results of `worth.py`, or at trainings in finished cells."""
    if method in OF_OTHERS:
        return all_looks(worth, OF_OTHERS[method])
    if method == POOLED:
        names = [name for name in cells if "influence" in cells[name] and int(name.rsplit(" ", 1)[1]) != seed]
        if not names:
            raise SystemExit(f"{POOLED} follows looks at trainings of other seeds, and there are none; raise --seeds")
    else:
        names = [f"{name} {seed}" for name in OF_ITS_OWN.get(method, ())]
    since = 0 if method == "looked" else epochs / 2
    return looks_at((cells[name]["influence"] for name in names), BEYOND, since)


def chosen(cells: Mapping[str, Cell]) -> float:
    """Return RandAugment's magnitude."""
    return min(MAGNITUDES, key=lambda each: cells[f"{TUNED} {each} {FIRST}"]["validation_error"])


def summary(cells: dict[str, Cell]) -> dict[str, Any]:
    """Return each method's mean and half 95 % interval in points, alone and for differences to the others."""
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
    parser = options(__doc__, "few-photos.json", seeds=9, first=FIRST)
    parser.add_argument("--methods", default=",".join(METHODS), help="methods from the list above, with commas")
    arguments = parser.parse_args()
    methods, epochs = arguments.methods.split(","), arguments.epochs
    if unknown := [name for name in methods if name not in METHODS]:
        parser.error(f"--methods {','.join(unknown)}: there are {', '.join(METHODS)}")
    worth = json.loads((RESULTS / "worth.json").read_text())

    def run(*wanted: tuple[str, float, int]) -> dict[str, Any]:
        """Train these methods, magnitudes and seeds. A later call may use results of an earlier one."""
        given = {}
        for method, magnitude, seed in wanted:
            name = f"{method} {magnitude} {seed}" if method == TUNED else f"{method} {seed}"
            looks = looks_for(method, seed, epochs, found["cells"], worth)
            given[name] = (method, seed, epochs, arguments.root, arguments.device, magnitude, looks)
        return complete(arguments.output, epochs, given, train, summary, arguments.jobs, unseen)

    def unseen(name: str, cell: Cell) -> bool:
        """Return whether a cell should have looks and was trained without them."""
        return name in to_watch and "influence" not in cell

    seeds = range(arguments.first, arguments.first + arguments.seeds)
    found: dict[str, Any] = {"cells": {}}
    trials = [(TUNED, each, FIRST) for each in MAGNITUDES if TUNED in methods]
    watched = {name for method in methods for name in OF_ITS_OWN.get("looked" if method == POOLED else method, ())}
    looked_at = [(name, 0.0, seed) for seed in seeds for name in WATCHED if name in watched]
    to_watch = {f"{name} {seed}" for name, _, seed in looked_at}
    found = run(*trials, *looked_at)
    magnitude = chosen(found["cells"]) if trials else 0.0
    # Seed by seed, so that what there is can be compared from the start.
    for method, row in run(*((name, magnitude, seed) for seed in seeds for name in methods))["summary"].items():
        told = (f"{name} {of['mean']:+.2f} ± {of.get('half_width', math.nan):.2f}" for name, of in row.items())
        print(f"{method:<18}{row['test_error']['seeds']} seeds, points: {', '.join(told)}")


if __name__ == "__main__":
    main()
