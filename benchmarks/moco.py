"""Compare base augmentation, the uniform policy and a learned policy for MoCo on CIFAR-10.

    python benchmarks/moco.py                              # the table and the curves of the results so far
    python benchmarks/moco.py --run --root data --jobs 3   # train the missing runs, and measure them

`--run` calls `madao compare --recipe cifar10-moco-resnet18`, whose error is the k-nearest-neighbour error. Then it
calls `madao evaluate --protocol linear` for each run, at the learning rate that is best on validation images. It passes
other options to `madao compare`.
"""

import argparse
import json
import re
import shlex
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from madao.config.aliases import current_method, current_record
from madao.experiments.published import record
from madao.experiments.table import run_path
from madao.report.chart_model import Chart, Panel, Series
from madao.report.figures import write_figures
from madao.text import METHOD_LABELS

ROOT = Path(__file__).parents[1]
RECIPE = "cifar10-moco-resnet18"
METHODS = METHOD_LABELS
RATES = (1.0, 3.0, 10.0)
"""The protocol's 30 is for features of ResNet-50."""


def run(path: Path, arguments: argparse.Namespace, more: list[str]) -> None:
    """Train, and measure by linear classifiers."""
    train = ["compare", "--recipe", RECIPE, "--data.root", arguments.root, "--methods", ",".join(METHODS)]
    train += ["--seeds", "0,", "--out", str(arguments.runs), "--export", str(path), "--jobs", str(arguments.jobs)]
    _madao([*train, *more])
    with ThreadPoolExecutor(arguments.jobs) as pool:
        found = dict(zip(METHODS, pool.map(lambda method: linear(method, arguments), METHODS), strict=True))
    results = read(path)
    about = {key: value for key, value in results.items() if key not in ("search", "settings", "cells")}
    path.write_text(record({}, {**about, "linear": found}, {}, results))


def read(path: Path) -> dict[str, Any]:
    """Return the record, with methods under the names of today."""
    found = current_record(json.loads(path.read_text()))
    if "linear" in found:
        found["linear"] = {current_method(method): each for method, each in found["linear"].items()}
    return found


def linear(method: str, arguments: argparse.Namespace) -> dict[str, float]:
    """The linear classifier's test error, at the rate that is best on validation images."""

    def error(split: str, rate: float) -> float:
        # No crops: features are computed once.
        settings = ["--protocol", "linear", "--linear.augment", "false", "--linear.lr", f"{rate:g}", "--split", split]
        printed = _madao(["evaluate", str(run_path(arguments.runs, method, 0)), "--root", arguments.root, *settings])
        found = re.search(rf"{split} linear error ([\d.]+) %", printed)
        if found is None:
            raise SystemExit(f"madao evaluate printed {printed!r}")
        return float(found[1]) / 100

    errors = {rate: error("validation", rate) for rate in RATES}
    best = min(errors, key=lambda rate: errors[rate])
    return {"rate": best, "validation_error": errors[best], "test_error": error("test", best)}


def _madao(command: list[str]) -> str:
    """What a command of madao prints; shown too."""
    print(shlex.join(["madao", *command]), flush=True)
    result = subprocess.run([sys.executable, "-m", "madao", *command], stdout=subprocess.PIPE, text=True)
    print(result.stdout, end="", flush=True)
    if result.returncode:
        raise SystemExit(result.returncode)
    return result.stdout


def table(results: dict[str, Any]) -> str:
    """Test accuracies, contrastive loss, time and memory; the linear classifier's rate beside its accuracy."""
    rows = ["| | k-NN accuracy, % | linear accuracy, % | training loss | minutes | MiB |", "| --- |" + " --- |" * 5]
    for method, name in METHODS.items():
        cell = results["cells"].get(f"{method} 0")
        if cell is None:
            rows.append(f"| {name} |" + " missing |" * 5)
            continue
        found = results.get("linear", {}).get(method)
        linear = "missing" if found is None else f"{100 * (1 - found['test_error']):.2f} (rate {found['rate']:g})"
        knn, loss = 100 * (1 - cell["test_error"]), cell["curve"]["train_loss"][-1]
        rows.append(
            f"| {name} | {knn:.2f} | {linear} | {loss:.3f} | {cell['minutes']:.1f} | {cell['memory_mib']:.0f} |"
        )
    return "\n".join(rows)


def figure(results: dict[str, Any], folder: Path) -> list[Path]:
    """Curves of the contrastive loss and of the nearest neighbours' error."""

    def panel(key: str, title: str) -> Panel:
        found = [(style, method, results["cells"].get(f"{method} 0")) for style, method in enumerate(METHODS)]
        series = [
            Series(METHODS[method], cell["curve"]["epoch"], cell["curve"][key], style)
            for style, method, cell in found
            if cell is not None
        ]
        return Panel(series, title)

    panels = [panel("train_loss", "contrastive loss of training"), panel("validation_error", "k-NN error, validation")]
    return write_figures({"moco": Chart("moco", "MoCo on CIFAR-10, ResNet-18", "", panels)}, folder)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--run", action="store_true", help="train the missing runs")
    parser.add_argument("--root", default="data", help="the folder of CIFAR-10")
    parser.add_argument("--runs", type=Path, default=Path("runs/moco"), help="the folder of the runs")
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time")
    parser.add_argument("--results", type=Path, default=ROOT / "benchmarks/results", help="the folder of the record")
    parser.add_argument("--output", type=Path, default=ROOT / "docs/images", help="the file of the figure")
    arguments, more = parser.parse_known_args()
    if any(word.startswith("--seeds") for word in more):
        parser.error("the benchmark has one seed, 0; for others: madao compare")
    path = arguments.results / "moco-cifar10.json"
    if more and not arguments.run:
        parser.error(f"unknown: {' '.join(more)}; settings of madao compare go with --run")
    if arguments.run:
        run(path, arguments, more)
    if not path.exists():
        raise SystemExit(f"{path} is missing; make it by --run")
    results = read(path)
    print(table(results))
    print("wrote", *figure(results, arguments.output))


if __name__ == "__main__":
    main()
