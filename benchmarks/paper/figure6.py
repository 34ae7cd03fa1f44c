"""Figure 6: how probability and magnitude develop at stage 1, of the operations selected most, CIFAR-10."""

from pathlib import Path

from entries import TABLE1, main, policies, trajectory

OPERATIONS = 5
ENTRIES = [TABLE1[0].only("learned")]


def rebuild(results: Path, output: Path) -> str:
    cells = ENTRIES[0].cells(results).get("learned", {})
    panels = [
        trajectory(cells, kind, 0, title, OPERATIONS)
        for kind, title in (("application", "probability p"), ("magnitude", "magnitude μ"))
    ]
    return policies("paper-figure6", "How often and how strongly, stage 1", panels, "p, μ", output)


if __name__ == "__main__":
    main(__doc__, ENTRIES, rebuild)
