"""Draw docs/images/hypergrad.png from the committed results: cosine to the exact gradient against cost.

python benchmarks/speed/plot_hypergrad.py
"""

import json
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

ROOT = Path(__file__).parents[2]
LABELS = {
    "madao Neumann, forward over reverse": "Neumann, forward over reverse",
    "madao Neumann, double backward": "Neumann, double backward",
    "madao Neumann, finite difference, step 1e-2": "Neumann, finite difference",
    "madao Neumann, Hessian of a quarter batch": "Neumann, ¼ batch",
    "madao identity (no products)": "identity",
    "madao unrolled, 5 steps": "unrolled",
    "betty neumann": "betty",
    "hypertorch fixed_point": "hypertorch",
    "TorchOpt custom_root, Neumann": "TorchOpt",
}


def main() -> None:
    results = json.loads((ROOT / "benchmarks" / "results" / "hypergrad-gpu.json").read_text())
    figure, axes = plt.subplots(1, 2, figsize=(11, 4.6), sharey=True)
    for axis, quantity, unit in ((axes[0], "ms", "time (ms)"), (axes[1], "memory_mib", "peak memory (MiB)")):
        for number, (name, label) in enumerate(LABELS.items()):
            row = results["rows"][name]
            ours = name.startswith("madao")
            error = max(1 - row["cosine"], 1e-7)
            marker = "osD^vP<>X"[number]
            colour = "#0072B2" if ours else "#D55E00"  # safe for colour-blind readers; the markers differ too
            axis.scatter(row[quantity], error, s=70, marker=marker, color=colour, label=label, zorder=3)
        axis.set_xlabel(unit)
        axis.set_yscale("log")
        axis.set_xlim(left=0)
        axis.grid(alpha=0.3)
    axes[0].set_ylabel("1 − cosine to the exact gradient\n(1e-7: none visible in float32)")
    axes[1].legend(loc="center left", bbox_to_anchor=(1.02, 0.5), frameon=False)
    figure.suptitle(
        f"One outer gradient, {results['model']}, batch {results['batch']}, one {results['machine']['gpu']}"
    )
    figure.tight_layout()
    figure.savefig(ROOT / "docs" / "images" / "hypergrad.png", dpi=110)


if __name__ == "__main__":
    main()
