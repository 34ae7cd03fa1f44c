"""Figure 2: how selection develops at the first stage, on the four fine-grained data sets."""

from pathlib import Path

from entries import TABLE3, main, policies, trajectory

ENTRIES = [entry.only("learned") for entry in TABLE3]


def rebuild(results: Path, output: Path) -> str:
    panels = [
        trajectory(entry.cells(results).get("learned", {}), "selection", 0, entry.recipe.removesuffix("-resnet18"))
        for entry in ENTRIES
    ]
    return policies("paper-figure2", "What the policy chooses, stage 1", panels, "selection", output)


if __name__ == "__main__":
    main(__doc__, ENTRIES, rebuild)
