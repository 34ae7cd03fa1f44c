"""Model the communication of several devices in an epoch, with measured or given constants.

    python benchmarks/speed/communication.py [--output FILE]                  # measures gloo between processes here
    python benchmarks/speed/communication.py --bandwidth 100 --latency 10     # GB/s and µs of the network you have

A ring sums b bytes over n devices in 2 (n − 1) (b / n / bandwidth + latency). Every training step sums the gradient, 4
bytes per parameter, as far as possible during the backward pass. An outer step sums v and one gradient of the deflated
solver (or one product for each power of the Neumann series), then a few hundred bytes for the policy's own gradient and
the influences. So learning adds 2 / s of the messages of s training steps with the deflated solver, and (1 + J) / s
with the paper's, for any number of devices and any size of the model.
"""

import argparse
import dataclasses
import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from measure import environment, write
from torch.multiprocessing.spawn import spawn

MODELS = {"wrn-28-2": 1_467_610, "resnet50": 25_557_032}
INNER_SECONDS = {"wrn-28-2": 2.97e-3, "resnet50": 20.8e-3}
"""Of one training step of 128 images on one H200, by `overhead.py`."""


@dataclasses.dataclass(frozen=True)
class Network:
    """A ring of devices: bytes per second between neighbours, and the seconds of latency."""

    bandwidth: float
    latency: float

    def seconds(self, count: int, devices: int) -> float:
        """Return the seconds to sum `count` bytes over all devices."""
        return 2 * (devices - 1) * (count / devices / self.bandwidth + self.latency)


def fitted(sizes: list[int], seconds: list[float], devices: int) -> Network:
    """Fit a ring to the measured times of sums of these sizes, by relative error."""
    rows = torch.tensor(
        [[2 * (devices - 1) / devices * size, 2 * (devices - 1)] for size in sizes], dtype=torch.float64
    )
    weights = 1 / torch.tensor(seconds, dtype=torch.float64)
    solved = torch.linalg.lstsq(rows * weights[:, None], torch.ones(len(sizes), 1, dtype=torch.float64)).solution
    slope, latency = solved.flatten().tolist()
    return Network(1 / max(slope, 1e-15), max(latency, 0.0))


def share(params: int, inner: float, network: Network, devices: int, sums: int, every: int) -> dict[str, float]:
    """Return the parts of the time that messages take, in `every` training steps and an outer step."""
    message = network.seconds(4 * params, devices)
    return {
        "milliseconds": 1000 * sums * message,
        "of_training": sums * message / (every * inner),  # nothing of the training steps' own messages hidden or shown
        "of_messages": sums / every,
    }


def _measure(rank: int, world: int, store: str, sizes: list[int], path: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", f"file://{store}", rank=rank, world_size=world)
    found = []
    for size in sizes:
        tensor, times = torch.ones(size // 4), []
        for _ in range(7):
            dist.barrier()
            began = time.perf_counter()
            dist.all_reduce(tensor)
            times.append(time.perf_counter() - began)
        found.append(statistics.median(times[2:]))
    if rank == 0:
        Path(path).write_text(json.dumps(found))
    dist.destroy_process_group()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bandwidth", type=float, help="GB/s between neighbours; by default measured")
    parser.add_argument("--latency", type=float, default=10.0, help="latency in µs; requires --bandwidth")
    parser.add_argument("--every", type=int, default=30)
    parser.add_argument("--output", metavar="FILE", type=Path)
    arguments = parser.parse_args()
    results: dict[str, Any] = environment("torch", "madao") | {"every": arguments.every}
    if arguments.bandwidth is None:
        sizes = [4 * 10**power for power in range(2, 8)]
        with tempfile.TemporaryDirectory() as folder:
            times = str(Path(folder) / "times.json")
            spawn(_measure, (2, f"{folder}/store", sizes, times), 2)
            seconds = json.loads(Path(times).read_text())
        network = fitted(sizes, seconds, 2)
        results["measured"] = {"devices": 2, "bytes": sizes, "seconds": seconds}
    else:
        network = Network(1e9 * arguments.bandwidth, 1e-6 * arguments.latency)
    results["network"] = dataclasses.asdict(network)
    print(f"{network.bandwidth / 1e9:.2f} GB/s, {1e6 * network.latency:.0f} µs")
    results["models"] = {}
    for model, params in MODELS.items():
        for solver, sums in (("deflated", 2), ("neumann, J=5", 6)):
            rows = {n: share(params, INNER_SECONDS[model], network, n, sums, arguments.every) for n in (2, 8, 16, 64)}
            results["models"][f"{model}, {solver}"] = rows
            line = "  ".join(f"{n}: {row['milliseconds']:.1f} ms, {row['of_training']:.1%}" for n, row in rows.items())
            print(f"{model}, {solver}: {line}")
    if arguments.output is not None:
        write(arguments.output, results)


if __name__ == "__main__":
    main()
