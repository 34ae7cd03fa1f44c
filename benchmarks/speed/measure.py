"""Timing for the speed benchmarks, and the record of the machine they ran on.

Contenders take turns, round after round, so other load on the machine affects all of them equally. The timed region of
a round contains all of its work, and the device is synchronised at both ends. Results are median and quartiles over
rounds.
"""

import dataclasses
import importlib.metadata
import json
import os
import platform
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch


@dataclasses.dataclass(frozen=True)
class Rate:
    """The items per second: median and quartiles over rounds."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, seconds: list[float], items: int) -> "Rate":
        """Return the rate from each round's seconds for `items` items."""
        rates = sorted(items / s for s in seconds)
        low, median, high = statistics.quantiles(rates, n=4) if len(rates) > 1 else (rates[0],) * 3
        return cls(median, low, high)


def rates(
    contenders: Mapping[str, Callable[[], Any]],
    items: int,
    rounds: int,
    device: str = "cpu",
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, Rate]:
    """Time contenders in turn over `rounds`, after two that do not count.

    On a GPU, where a call may take microseconds, a round is as many calls as fill 50 ms. For work of one thread, use
    `time.process_time` as the clock: other load on the machine then counts less.
    """
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    calls = dict.fromkeys(contenders, 1)
    for number in range(rounds + 2):
        for name, work in contenders.items():
            _synchronise(device)
            start = clock()
            for _ in range(calls[name]):
                work()
            _synchronise(device)
            each = (clock() - start) / calls[name]
            if number > 1:
                seconds[name].append(each)
            elif number == 1 and device != "cpu":
                calls[name] = max(1, round(0.05 / each))
    return {name: Rate.of(values, items) for name, values in seconds.items()}


def environment(*packages: str) -> dict[str, Any]:
    """Return machine, versions, commit and command."""
    return {
        "command": _command(sys.argv),
        "commit": _output("git", "describe", "--always", "--dirty") or "unknown",
        "machine": {
            "cpu": _cpu(),
            "cores": os.cpu_count(),
            "threads": torch.get_num_threads(),
            "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        },
        "versions": {"python": platform.python_version()} | {name: _version(name) for name in packages},
    }


def write(path: Path, results: dict[str, Any]) -> None:
    """Write results as JSON."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(results, indent=2) + "\n")
    print(f"wrote {path}")


def _synchronise(device: str) -> None:
    if device != "cpu":
        torch.cuda.synchronize()


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _command(words: Sequence[str]) -> str:
    """Return the command without the place of results, and with FOLDER for the place of data."""
    said = re.sub(r" --output[ =]\S+", "", " ".join(["python", *words]))
    return re.sub(r"(?<= --root)([ =])\S+", r"\1FOLDER", said)


def _output(*command: str) -> str:
    result = subprocess.run(command, capture_output=True, text=True, check=False, cwd=Path(__file__).parent)
    return result.stdout.strip()


def _cpu() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()
