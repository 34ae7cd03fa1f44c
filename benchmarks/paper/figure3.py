"""Figure 3: test error against the number of inner steps s, CIFAR-10, WideResNet-28-2. The paper's best is s = 30."""

from pathlib import Path

from entries import TABLE1, Entry, against, error, main

STEPS = {1: "s1", 5: "s5", 10: "s10", 30: "madao", 60: "s60", 120: "s120"}
ENTRIES = [
    TABLE1[0].only("madao"),
    Entry("cifar10-wrn-28-2", [name for name in STEPS.values() if name != "madao"], "-steps"),
]


def rebuild(results: Path, output: Path) -> str:
    cells = {method: runs for entry in ENTRIES for method, runs in entry.cells(results).items()}
    found = {float(steps): error(cells.get(name, {})) for steps, name in STEPS.items()}
    return against("paper-figure3", "Test error and inner steps", "inner steps s", found, output)


if __name__ == "__main__":
    main(__doc__, ENTRIES, rebuild)
