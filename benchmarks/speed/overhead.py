"""Measure the cost of learning the policy: time and peak memory of training with and without it.

    python benchmarks/speed/overhead.py [--model wrn-28-2] [--task classification] [--jobs 1] [--output FILE]

Every row runs the trainer of `madao train` on random images of CIFAR-10's shape, with batch 128, bf16, an outer step
every 30 inner steps from the start, and Hessians over a few images of the batch (--curvature). J=5 is the setting of
`madao train`, which leaves out powers of the Hessian that contribute less than 1 % of the series, as measured at every
tenth outer step; "all powers" leaves none out. An epoch is 351 steps. The first epoch compiles code and records graphs,
so it does not count (--warm), and its peak memory is reported separately. Memory is what torch holds of the GPU,
including the data set. The reference is the fastest row without a policy. One GPU, one process per row. With --jobs,
rows compile side by side, which takes each of them longer; the timed epochs run after that, one row after the other.
"""

import argparse
import itertools
import json
import multiprocessing
import statistics
import tempfile
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import torch
from measure import environment, write

from madao.config.train_config import (
    AugmentConfig,
    ModelConfig,
    OptimizerConfig,
    OuterConfig,
    SpeedConfig,
    TaskConfig,
    TrainConfig,
)
from madao.data import InMemoryImages
from madao.training.builders.run import build_run
from madao.training.splits import Splits
from madao.training.trainer import Trainer

DEFAULT = {"every": 30, "warmup": 0}
LARGE = {
    "every": 120,
    "warmup": 0,
    "batch_size": 512,
    "train_batch_size": 2048,
    "curvature_batch_size": 512,
    "pathwise_batch_size": 128,
}
GAUSS_NEWTON = {"solver": "gauss-newton", "steps": 10}
LARGER = {**LARGE, "every": 240, "batch_size": 1024, "train_batch_size": 4096, "curvature_batch_size": 1024}
PAPER = {
    **DEFAULT,
    "solver": "neumann",
    "steps": 5,
    "scale": 1e-3,
    "optimizer": "rmsprop",
    "lr": 0.01,
    "model_mode": "train",
}
RELAXED = {**PAPER, "estimator": "relaxed"}
INFLUENCE = {**DEFAULT, "solver": "neumann", "steps": 5, "scale": 1e-3}
ONE_STEP = {**DEFAULT, "solver": "identity"}
EAGER = {"graph": False, "compile": False}
GRAPH = {"graph": True, "compile": False}
COMPILED = {"graph": True, "compile": True}
ROWS: dict[str, dict[str, Any]] = {
    "base, compiled": {"method": "base", **COMPILED},
    "uniform, compiled": {"method": "uniform", **COMPILED},
    "learned, relaxed, J=5, compiled": {"outer": RELAXED, **COMPILED},
    "learned, relaxed, J=5, all powers, compiled": {"outer": {**RELAXED, "tolerance": 0}, **COMPILED},
    "learned, influence, J=5, compiled": {"outer": INFLUENCE, **COMPILED},
    "learned, influence, J=0, compiled": {"outer": ONE_STEP, **COMPILED},
    "learned, influence, deflated, compiled": {"outer": DEFAULT, **COMPILED},
    "learned, influence, deflated, all magnitudes, compiled": {
        "outer": {**DEFAULT, "pathwise_batch_size": 128},
        **COMPILED,
    },
    "learned, influence, gauss-newton, 2048 images every 240, compiled": {
        "outer": {**LARGE, "every": 240, **GAUSS_NEWTON},
        **COMPILED,
    },
    "learned, influence, deflated, 2048 images every 120, compiled": {"outer": LARGE, **COMPILED},
    "learned, influence beyond the loss, deflated, 2048 images every 120, compiled": {
        "outer": {**LARGE, "baseline": "same-loss"},
        **COMPILED,
    },
    "learned, influence, deflated, 4096 images every 240, compiled": {"outer": LARGER, **COMPILED},
    "learned, deflated, a policy for each class, compiled": {"outer": DEFAULT, "condition": "class", **COMPILED},
    "learned, deflated, a policy for each image, compiled": {"outer": DEFAULT, "condition": "image", **COMPILED},
    "base, graph": {"method": "base", **GRAPH},
    "learned, relaxed, J=5, graph": {"outer": RELAXED, **GRAPH},
    "learned, influence, J=0, graph": {"outer": ONE_STEP, **GRAPH},
    "base, eager": {"method": "base", **EAGER},
    "uniform, eager, grouped operations": {"method": "uniform", "kernels": False, **EAGER},
    "learned, relaxed, J=5, eager": {"outer": RELAXED, **EAGER},
}


def random_splits(images: int, side: int, masks: bool = False) -> Splits:
    """Return random images of ten classes, or with random masks."""
    generator = torch.Generator().manual_seed(0)

    def pixels(count: int) -> InMemoryImages:
        shape = (count, 3, side, side)
        return InMemoryImages(
            torch.randint(0, 256, shape, generator=generator, dtype=torch.uint8),
            torch.randint(0, 10, (count,), generator=generator),
            torch.randint(0, 10, (count, side, side), generator=generator, dtype=torch.uint8) if masks else None,
        )

    validation = pixels(max(images // 9, 256))
    classes = tuple("0123456789")
    return Splits("random", classes, pixels(images), validation, None, True, side, (0.5,) * 3, (0.25,) * 3, None)


def _outer(row: dict[str, Any], curvature: int) -> OuterConfig:
    outer = {"budget": 0.0, **row.get("outer", {})}
    return OuterConfig(**(outer | {"curvature_batch_size": curvature} if outer.get("solver") == "neumann" else outer))


class Timed(Trainer):
    """A trainer that waits for its turn before the epochs that count."""

    turn: Callable[[], None]
    warm: int

    def end_epoch(self) -> None:
        """Wait for the turn after the warm-up."""
        super().end_epoch()
        if self.run.epoch == self.warm:
            self.turn()


def measure(
    row: dict[str, Any], splits: Splits, arguments: argparse.Namespace, turn: Callable[[], None]
) -> dict[str, Any]:
    """Train for a few epochs; those after the first ones count."""
    speed = {name: row[name] for name in ("graph", "compile", "kernels") if name in row}
    with tempfile.TemporaryDirectory() as folder:
        config = TrainConfig(
            task=TaskConfig(name=arguments.task, queue=arguments.queue, bn_splits=arguments.splits),
            model=ModelConfig(name=arguments.model),
            augment=AugmentConfig(
                method=row.get("method", "learned"),
                conditional_on=row.get("condition", "none"),
                cutout=0 if arguments.task == "moco" else 16,
            ),
            optimizer=OptimizerConfig(lr=0.01),
            outer=_outer(row, arguments.curvature),
            speed=SpeedConfig(**speed),
            epochs=arguments.epochs,
            batch_size=arguments.batch,
            precision=arguments.precision,
            evaluate_every=arguments.epochs,
            logger="none",
            device=arguments.device,
            out=str(Path(folder) / "run"),
        )
        trainer = Timed(build_run(config, splits))
        trainer.turn, trainer.warm = turn, arguments.warm
        trainer.fit()
        lines = (Path(folder) / "run" / "timing.csv").read_text().splitlines()
    names = lines[0].split(",")
    epochs = [dict(zip(names, map(_number, line.split(",")), strict=True)) for line in lines[1:]]
    counted = epochs[arguments.warm :]
    seconds = statistics.median(float(epoch["seconds"] or 0) for epoch in counted)
    every = row.get("outer", DEFAULT)["every"]
    ends = [int(epoch["step"] or 0) // every for epoch in epochs]
    outer_steps = statistics.median(b - a for a, b in itertools.pairwise(ends[arguments.warm - 1 :]))
    outer = statistics.median(float(epoch["outer_seconds"] or 0) for epoch in counted)
    peaks = [max(float(epoch["memory_mib"] or 0), float(epoch["outer_memory_mib"] or 0)) for epoch in epochs]
    return {
        "seconds_per_epoch": seconds,
        "outer_seconds_per_epoch": outer,
        "outer_milliseconds_per_step": 1000 * outer / max(outer_steps, 1),
        "first_epoch_seconds": epochs[0]["seconds"],
        "peak_while_recording_mib": max(peaks[: arguments.warm]),
        "peak_mib": max(peaks[arguments.warm :]),
    }


def cell(name: str, arguments: argparse.Namespace, ready: Any, turns: Any) -> dict[str, Any]:
    """A row, in a process of its own; a row that fails is a result too."""
    waited = False

    def turn() -> None:
        nonlocal waited
        waited = True
        ready.wait()
        turns.acquire()
        print("timed from here on:", name, flush=True)

    try:
        splits = random_splits(arguments.images, arguments.side, arguments.task == "segmentation")
        return measure(ROWS[name], splits, arguments, turn)
    except Exception as error:
        return {"error": " ".join(f"{type(error).__name__}: {error}".split())[:300]}
    finally:
        if not waited:
            turn()
        turns.release()


def _number(text: str) -> float | None:
    return float(text) if text else None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="wrn-28-2")
    parser.add_argument("--task", default="classification", choices=("classification", "segmentation", "moco"))
    parser.add_argument("--queue", type=int, default=65_536, help="number of keys in MoCo's queue")
    parser.add_argument(
        "--splits", type=int, default=1, help="parts of MoCo's batches with separate BatchNorm statistics"
    )
    parser.add_argument("--precision", default="bf16")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--side", type=int, default=32)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument(
        "--curvature", type=int, default=8, help="number of images in the Hessian, for solvers that use it"
    )
    parser.add_argument("--images", type=int, default=45_000)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--warm", type=int, default=1, help="number of epochs before the measurement")
    parser.add_argument("--jobs", type=int, default=1, help="rows that compile at the same time")
    parser.add_argument("--rows", default="", help="only rows whose name contains one of these texts, separated by |")
    parser.add_argument("--output", metavar="FILE", type=Path)
    arguments = parser.parse_args()
    if arguments.epochs <= arguments.warm:
        parser.error(f"--epochs must be above --warm, which is {arguments.warm}, got {arguments.epochs}")
    results: dict[str, Any] = environment("torch", "triton", "madao") | {"settings": vars(arguments) | {"output": None}}
    results["rows"] = {}
    names = [name for name in ROWS if any(part in name for part in arguments.rows.split("|"))]
    spawn = multiprocessing.get_context("spawn")  # CUDA does not survive a fork
    for start in range(0, len(names), arguments.jobs):
        some = names[start : start + arguments.jobs]
        with spawn.Manager() as manager, ProcessPoolExecutor(len(some), spawn) as pool:
            ready, turns = manager.Barrier(len(some)), manager.Lock()
            running = {name: pool.submit(cell, name, arguments, ready, turns) for name in some}
            for name, future in running.items():
                results["rows"][name] = future.result()
                print(name, json.dumps(results["rows"][name]), flush=True)
                if arguments.output is not None:
                    write(arguments.output, results)
    plain = [row for name, row in results["rows"].items() if name.startswith("base") and "error" not in row]
    if plain:
        fastest = min(plain, key=lambda row: row["seconds_per_epoch"])
        for name, row in results["rows"].items():
            if "error" not in row:
                row["time_ratio"] = row["seconds_per_epoch"] / fastest["seconds_per_epoch"]
                row["memory_ratio"] = row["peak_mib"] / fastest["peak_mib"]
                ratios = f"{row['time_ratio']:6.2f} × time {row['memory_ratio']:6.2f} × memory"
                print(f"{name:<38}{row['seconds_per_epoch']:8.2f} s {ratios}")
    if arguments.output is not None:
        write(arguments.output, results)


if __name__ == "__main__":
    main()
