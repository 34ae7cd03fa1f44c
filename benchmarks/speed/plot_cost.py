"""Draw the cost of one outer step, in six panels, from the results of cost.py.

python benchmarks/speed/plot_cost.py [--results benchmarks/results/cost-gpu.json] [--output docs/images/cost.png]
"""

import argparse
import json
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullFormatter, NullLocator

ROOT = Path(__file__).parents[2]
OUTER, TRAINING, UNROLLED = "#0072B2", "#555555", "#D55E00"  # safe for colour-blind readers; the markers differ too
SHADES = ("#56B4E9", OUTER, "#003A5C")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", metavar="FILE", type=Path, default=ROOT / "benchmarks/results/cost-gpu.json")
    parser.add_argument("--output", metavar="FILE", type=Path, default=ROOT / "docs/images/cost.png")
    arguments = parser.parse_args()
    results = json.loads(arguments.results.read_text())
    figure, axes = plt.subplots(2, 3, figsize=(12.5, 7.2))
    base = results["base"]
    times(axes[0, 0], results, "terms", "terms", "J, terms of the Neumann series", logarithmic=False)
    times(axes[0, 1], results, "batch", "batch", "batch size")
    times(axes[0, 2], results, "side", "side", "image side (pixels)")
    times(axes[1, 0], results, "width", "parameters", "parameters, by the model's width")
    memory(axes[1, 1], results)
    epochs(axes[1, 2], results)
    axes[0, 0].legend(frameon=False)
    machine = results["machine"]["gpu"] if results["memory"] else results["machine"]["cpu"]
    figure.suptitle(
        f"One outer step: {results['model'].upper()}, batch {base['batch']}, {base['side']} px, J = {base['terms']} "
        f"unless varied; {results['precision']}, {machine}",
        fontsize=11,
    )
    figure.tight_layout()
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(arguments.output, dpi=110)


def times(axis: Any, results: dict[str, Any], varied: str, quantity: str, label: str, logarithmic: bool = True) -> None:
    """Plot milliseconds of an outer step and of a training step against the setting that varies."""
    rows = measured(axis, results["axes"][varied], varied)
    at = [row[quantity] for row in rows]
    for name, key, colour, marker in (
        ("outer step", "outer_seconds", OUTER, "o"),
        ("training step", "inner_seconds", TRAINING, "s"),
    ):
        axis.plot(at, [1e3 * row[key] for row in rows], marker=marker, color=colour, label=name)
    axis.set_ylabel("time (ms)")
    axis.set_title(f"time against {label.partition(',')[0].partition(' (')[0]}", fontsize=10)
    if logarithmic:
        axis.set_yscale("log")
        axis.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axis.yaxis.set_minor_formatter(NullFormatter())
        axis.yaxis.set_major_formatter(FuncFormatter(short))
    else:
        axis.set_ylim(bottom=0)
    places(axis, at, label, logarithmic)


def memory(axis: Any, results: dict[str, Any]) -> None:
    """Plot peak memory of the implicit step over J and of unrolling over T."""
    axis.set_title("memory: implicit and unrolled, both eager", fontsize=10)
    if results["memory"] is None:
        axis.text(0.5, 0.5, "not measured on CPUs", transform=axis.transAxes, ha="center", color=TRAINING)
        axis.set_axis_off()
        return
    at: set[int] = set()
    for name, key, label, colour, marker in (
        ("implicit", "terms", "implicit, J terms", OUTER, "o"),
        ("unrolled", "steps", "unrolled, T steps", UNROLLED, "D"),
    ):
        rows = measured(axis, results["eager"][name], key)
        gib = [row["memory_mib"] / 1024 for row in rows]
        axis.plot([row[key] for row in rows], gib, marker=marker, color=colour, label=label)
        at |= {row[key] for row in rows}
    axis.legend(frameon=False)
    axis.set_ylim(bottom=0)
    axis.set_ylabel("peak memory (GiB)")
    places(axis, sorted(at), "J or T", logarithmic=False)


def epochs(axis: Any, results: dict[str, Any]) -> None:
    """Plot the time of an epoch relative to standard training, for few, usual and many terms."""
    known = sorted({row["terms"] for row in results["epoch"]})
    shown = sorted({known[0], results["base"]["terms"], known[-1]} & set(known)) if known else []
    for terms, colour, marker in zip(shown, SHADES[-len(shown) :], "^ov", strict=False):
        rows = [row for row in results["epoch"] if row["terms"] == terms]
        at = [row["every"] for row in rows]
        axis.plot(at, [row["relative"] for row in rows], marker=marker, color=colour, label=f"J = {terms}")
    axis.axhline(1.0, linestyle="--", color=TRAINING, label="standard training")
    axis.set_yscale("log")
    axis.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axis.yaxis.set_minor_locator(NullLocator())
    axis.yaxis.set_major_formatter(FuncFormatter(short))
    axis.set_ylim(bottom=0.9)
    axis.set_ylabel("relative to standard training")
    axis.set_title("time of an epoch against s", fontsize=10)
    axis.legend(frameon=False)
    places(axis, sorted({row["every"] for row in results["epoch"]}), "s, training steps between outer steps")


def measured(axis: Any, rows: list[dict[str, Any]], varied: str) -> list[dict[str, Any]]:
    """Return the rows that have a result; the panel names the others."""
    failed = [str(row[varied]) for row in rows if "error" in row]
    if failed:
        note = f"no result at {varied} {', '.join(failed)}"
        axis.text(0.97, 0.04, note, transform=axis.transAxes, ha="right", fontsize=9, color=UNROLLED)
    return [row for row in rows if "error" not in row]


def places(axis: Any, at: list[int], label: str, logarithmic: bool = True) -> None:
    """Set ticks at the measured values."""
    if logarithmic:
        axis.set_xscale("log")
    axis.xaxis.set_major_locator(FixedLocator(at))
    axis.xaxis.set_minor_locator(NullLocator())
    axis.xaxis.set_major_formatter(FuncFormatter(short))
    axis.set_xlabel(label)
    axis.grid(alpha=0.3)


def short(number: float, _: object = None) -> str:
    """Format 1500000 as 1.5 M."""
    for unit, name in ((1e6, " M"), (1e3, " k")):
        if number >= 10 * unit or (number >= unit and unit > 1e3):
            return f"{number / unit:.3g}{name}"
    return f"{number:.5g}"


if __name__ == "__main__":
    main()
