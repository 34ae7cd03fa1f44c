"""Draw docs/images/signal.png from the committed results: signal of the gradient, and test errors.

python benchmarks/plot_signal.py
"""

import json
import statistics
from collections.abc import Collection
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

from madao.config.aliases import current_record

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
ESTIMATORS = {
    "paper: relaxed, Neumann J=5": "the paper's",
    "influence, deflated, 16 × images, 4 × of all": "deflated",
    "influence, gauss-newton, 16 × images, 4 × of all": "Gauss-Newton",
}
EPOCHS = {"25": "signal-cifar10-200-25-gauss-newton.json", "150": "signal-cifar10-200-150.json"}
METHODS = {
    "base": "base augmentation",
    "uniform": "uniform",
    "trivialaugment": "TrivialAugment",
    "randaugment": "RandAugment, tuned",
    "learned": "the paper's",
    "deflated": "deflated",
    "averaged": "deflated, averaged weights",
    "which": "deflated, which only",
    "late": "deflated, second half only",
    "same-loss": "deflated, beyond the loss",
    "gauss-newton": "Gauss-Newton",
}
BLUE, ORANGE, GREY = "#0072B2", "#D55E00", "#666666"  # safe for colour-blind readers; the markers differ too
FLOOR = 1e-3


def signal(axis: Any) -> None:
    """The squared signal-to-noise ratio of a step."""
    for (epoch, name), marker, colour in zip(EPOCHS.items(), "os", (BLUE, ORANGE), strict=True):
        rows = json.loads((RESULTS / name).read_text())["variants"]
        ratios = [rows[estimator]["selection"]["signal_to_noise"] for estimator in ESTIMATORS]
        shown = [max(ratio, FLOOR) for ratio in ratios]
        axis.scatter(shown, range(len(shown)), s=70, marker=marker, color=colour, label=f"epoch {epoch}", zorder=3)
    axis.axvline(FLOOR, color=GREY, linestyle=":", linewidth=1)
    axis.set_xscale("log")
    rows_of(axis, ESTIMATORS.values(), "R of the selection, one outer step (left edge: none)")
    axis.set_title("How much of a step is signal")
    axis.legend(frameon=False, loc="lower left")


def errors(axis: Any) -> None:
    """Of sixty epochs, seed by seed."""
    cells = current_record(json.loads((RESULTS / "paper-cifar10-wrn-28-2-60.json").read_text()))["cells"]
    for place, method in enumerate(METHODS):
        found = [100 * cell["test_error"] for name, cell in cells.items() if name.rsplit(" ", 1)[0] == method]
        learned = method not in ("base", "uniform", "trivialaugment", "randaugment")
        colour = BLUE if learned else GREY
        axis.scatter(found, [place] * len(found), s=40, color=colour, marker="o" if learned else "D", zorder=3)
        axis.plot([statistics.mean(found)] * 2, [place - 0.3, place + 0.3], color=colour, linewidth=2)
    rows_of(axis, METHODS.values(), "test error, %: three to six seeds, and their mean")
    axis.set_title("What came of it in sixty epochs")


def rows_of(axis: Any, names: Collection[str], label: str) -> None:
    """A row for each name, the first on top."""
    axis.set_yticks(range(len(names)), names)
    axis.set_ylim(len(names) - 0.5, -0.5)
    axis.set_xlabel(label)
    axis.grid(alpha=0.3)


def main() -> None:
    figure, axes = plt.subplots(1, 2, figsize=(11, 4.2), gridspec_kw={"width_ratios": (1, 1.2)})
    signal(axes[0])
    errors(axes[1])
    figure.tight_layout()
    figure.savefig(ROOT / "docs" / "images" / "signal.png", dpi=110)


if __name__ == "__main__":
    main()
