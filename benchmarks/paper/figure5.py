"""Figure 5: how selection develops at both stages, on CIFAR-10 and SVHN, WideResNet-28-2."""

from pathlib import Path

from entries import TABLE1, main, policies, trajectory

ENTRIES = [TABLE1[0].only("learned"), TABLE1[-1].only("learned")]


def rebuild(results: Path, output: Path) -> str:
    panels = [
        trajectory(entry.cells(results).get("learned", {}), "selection", stage, f"{entry.recipe}, stage {stage + 1}")
        for entry in ENTRIES
        for stage in (0, 1)
    ]
    return policies("paper-figure5", "What the policy chooses", panels, "selection", output)


if __name__ == "__main__":
    main(__doc__, ENTRIES, rebuild)
