"""Measure how the cost of one outer step grows with J, batch, image side and parameters, and with T unrolled steps.

    python benchmarks/speed/cost.py --device cuda      # one GPU, WideResNet-28-2, bf16: a few minutes
    python benchmarks/speed/cost.py                    # CPU, WideResNet-16-2, float32: over an hour; --quick: seconds

From a base point (batch 128, 32 px, J = 5) one setting varies at a time. The script measures a call of
`PolicyOptimizer.step` that takes an outer step, with the paper's estimator and solver, without measuring the residual,
on random images. For comparison it measures a plain training step of the same model and batch: forward, backward, SGD,
no augmentation. On a GPU both are CUDA graphs. Unrolling cannot be a graph, so it is measured eagerly, as is the
implicit step it is compared with.

Relative cost of an epoch with an outer step every s training steps: 1 + outer_seconds / (s · inner_seconds). This does
not include drawing and applying the policy in the training steps; `overhead.py` measures whole epochs.

Memory is the peak minus the memory before model, policy and data. For graphs it is the peak of *reserved* memory after
recording (the calls before it run on other streams, for each of which the allocator keeps memory). For eager steps it
is the peak of *allocated* memory. On CPUs it is None.
"""

import argparse
import dataclasses
import gc
import re
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from measure import environment, rates, write
from torch import Tensor, nn

from madao import Policy
from madao.device.allocator import empty_caches
from madao.device.precision import set_precision
from madao.hypergrad import Momentum, Neumann, Relaxed, Unrolled
from madao.models import WideResNet
from madao.outer import ComputeOptions, PolicyOptimizer
from madao.outer.cuda_graph import CudaGraphRunner

SCALE = 1e-3
CALLS_UNTIL_RECORDED = 4
EAGER_REPEATS = 3


@dataclasses.dataclass(frozen=True)
class Size:
    """The sizes of the model, WideResNet-depth-width, and of the batches."""

    depth: int
    width: int
    batch: int
    side: int

    def batches(self, device: str) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
        """Random images and labels, for training and validation."""
        shape = (self.batch, 3, self.side, self.side)
        first, second = (
            (torch.rand(shape, device=device), torch.randint(10, (self.batch,), device=device)) for _ in range(2)
        )
        return first, second


@dataclasses.dataclass(frozen=True)
class Ranges:
    """The values of each setting, which vary one at a time."""

    terms: tuple[int, ...] = (0, 2, 5, 10)
    batch: tuple[int, ...] = (32, 128, 512)
    side: tuple[int, ...] = (32, 64, 128)
    width: tuple[int, ...] = (1, 2, 4, 10)
    unrolled_steps: tuple[int, ...] = (1, 2, 5, 10)
    every: tuple[int, ...] = (1, 5, 10, 30, 60, 120)


QUICK = Ranges(terms=(0, 1), batch=(4, 8), side=(8, 16), width=(1, 2), unrolled_steps=(1, 2))


class Bench:
    """A benchmark that measures each point once.

    Args:
        device: cpu or cuda.
        repeats: Number of repeats for medians; at most `EAGER_REPEATS` for eager steps.
    """

    def __init__(self, device: str, repeats: int) -> None:
        self.device, self.gpu, self.repeats = device, device != "cpu", repeats
        self.autocast = set_precision("bf16" if self.gpu else "32")
        self._found: dict[Any, dict[str, Any]] = {}

    def point(self, size: Size, solver: Neumann | Unrolled, recorded: bool) -> dict[str, Any]:
        """Measure seconds of an outer and of a training step, and the outer one's peak memory; or note a lack of it."""
        recorded = recorded and self.gpu
        key = (size, solver, recorded)
        if key not in self._found:
            try:
                self._found[key] = self._measured(size, solver, recorded)
            except RuntimeError as error:  # what torch, cuDNN and the CPU's allocator raise where memory is short
                self._found[key] = {"error": " ".join(f"{type(error).__name__}: {error}".split())[:200]}
            print(f"{size} {solver} {'recorded' if recorded else 'eager'}: {self._found[key]}", flush=True)
        return self._found[key]

    def _measured(self, size: Size, solver: Neumann | Unrolled, recorded: bool) -> dict[str, Any]:
        before = self._memory_before(recorded)
        torch.manual_seed(0)
        model, policy = WideResNet(size.depth, size.width, 10).to(self.device), Policy().to(self.device)
        model.to(memory_format=torch.channels_last)  # as `madao train` has it on a GPU
        training, validation = size.batches(self.device)
        outer = PolicyOptimizer(
            policy,
            model,
            every=1,
            solver=solver,
            estimator=Relaxed(),
            compute=ComputeOptions(inner_mode="train", autocast=self.autocast, check_every=0),
        )
        said: list[str] = []
        if recorded:
            outer.record(said.append, compare=False)  # a comparison takes a minute for all points together
        outer_seconds, memory = self._median(lambda: outer.step(training, validation), recorded, before)
        inner_step = _training_step(model, self.autocast)
        if recorded:
            inner_step = CudaGraphRunner(inner_step, "training steps", [], said.append)
        inner_seconds, _ = self._median(lambda: inner_step(None, training), recorded, before)
        found = {
            "parameters": sum(parameter.numel() for parameter in model.parameters()),
            "outer_seconds": outer_seconds,
            "inner_seconds": inner_seconds,
            "memory_mib": memory,
        }
        return found | ({"not_recorded": said} if said else {})

    def _median(self, work: Callable[[], Any], recorded: bool, before: int) -> tuple[float, float | None]:
        """Return the median seconds of a call, and its peak memory in MiB."""
        if recorded:
            for _ in range(CALLS_UNTIL_RECORDED):
                work()
        if self.gpu:
            gc.collect()
            empty_caches()
            torch.cuda.reset_peak_memory_stats()
        rounds = self.repeats if recorded else min(self.repeats, EAGER_REPEATS)
        seconds = 1 / rates({"": work}, 1, rounds, self.device)[""].median
        if not self.gpu:
            return seconds, None
        peak = torch.cuda.max_memory_reserved() if recorded else torch.cuda.max_memory_allocated()
        return seconds, (peak - before) / 2**20

    def _memory_before(self, recorded: bool) -> int:
        if not self.gpu:
            return 0
        gc.collect()
        empty_caches()
        return torch.cuda.memory_reserved() if recorded else torch.cuda.memory_allocated()


def _training_step(model: nn.Module, autocast: torch.dtype | None) -> Callable[[None, tuple[Tensor, ...]], Tensor]:
    """Return a step of standard training, in the form that `CudaGraphRunner` records."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, weight_decay=5e-4)

    def step(_: None, batch: tuple[Tensor, ...]) -> Tensor:
        images, labels = batch
        optimizer.zero_grad()
        with torch.autocast(images.device.type, autocast, enabled=autocast is not None):
            loss = F.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


def relative_epochs(terms: list[dict[str, Any]], every: tuple[int, ...]) -> list[dict[str, Any]]:
    """Return the time of an epoch relative to standard training, for every J and s."""
    measured = [row for row in terms if "error" not in row]
    if not measured:
        return []
    inner_seconds = statistics.median(row["inner_seconds"] for row in measured)  # of one and the same step
    return [
        {"terms": row["terms"], "every": steps, "relative": 1 + row["outer_seconds"] / (steps * inner_seconds)}
        for row in measured
        for steps in every
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--model", help="wrn-DEPTH-WIDTH; by default wrn-28-2 on a GPU, wrn-16-2 on a CPU")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--output", metavar="FILE", type=Path)
    parser.add_argument(
        "--quick", action="store_true", help="a tiny model and one round, to check that the script works"
    )
    arguments = parser.parse_args()
    gpu = arguments.device != "cpu"
    name = arguments.model or ("wrn-10-1" if arguments.quick else "wrn-28-2" if gpu else "wrn-16-2")
    numbers = re.fullmatch(r"wrn-(\d+)-(\d+)", name)
    if numbers is None:
        parser.error(f"--model must be wrn-DEPTH-WIDTH, got {name}")
    depth, width = map(int, numbers.groups())
    ranges = QUICK if arguments.quick else Ranges()
    terms, batch, side = (1, 4, 8) if arguments.quick else (5, 128, 32)
    base = Size(depth, width, batch, side)
    bench = Bench(arguments.device, 1 if arguments.quick else arguments.repeats)

    def implicit(size: Size, terms: int, recorded: bool = True) -> dict[str, Any]:
        return bench.point(size, Neumann(terms, SCALE), recorded)

    results: dict[str, Any] = environment("torch", "madao") | {
        "model": name,
        "precision": "bf16" if gpu else "float32",
        "repeats": bench.repeats,
        "base": {"terms": terms, "batch": batch, "side": side, "width": width},
        # Of every axis the rows share one definition of memory.
        "memory": {"axes": "reserved after recording", "eager": "allocated"} if gpu else None,
        "axes": {
            "terms": [{"terms": value} | implicit(base, value) for value in ranges.terms],
            **{
                axis: [
                    {axis: value} | implicit(dataclasses.replace(base, **{axis: value}), terms)
                    for value in getattr(ranges, axis)
                ]
                for axis in ("batch", "side", "width")
            },
        },
        "eager": {
            "implicit": [{"terms": value} | implicit(base, value, recorded=False) for value in ranges.terms],
            "unrolled": [
                {"steps": value} | bench.point(base, Unrolled(value, Momentum(SCALE)), recorded=False)
                for value in ranges.unrolled_steps
            ],
        },
    }
    results["epoch"] = relative_epochs(results["axes"]["terms"], ranges.every)
    for row in results["epoch"]:
        print(f"J = {row['terms']}, an outer step every {row['every']}: {row['relative']:.2f} × standard training")
    output = arguments.output
    if output is None and not arguments.quick:
        output = Path(__file__).parents[1] / "results" / f"cost-{'gpu' if gpu else 'cpu'}.json"
    if output is not None:
        write(output, results)


if __name__ == "__main__":
    main()
