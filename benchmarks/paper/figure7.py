"""Figure 7: test error against the epochs of warm-up w, CIFAR-10, WideResNet-28-2. In the paper: no difference."""

from pathlib import Path

from entries import TABLE1, Entry, against, error, main

EPOCHS = {0: "w0", 10: "w10", 20: "madao", 30: "w30"}
ENTRIES = [
    TABLE1[0].only("madao"),
    Entry("cifar10-wrn-28-2", [name for name in EPOCHS.values() if name != "madao"], "-warmup"),
]


def rebuild(results: Path, output: Path) -> str:
    cells = {method: runs for entry in ENTRIES for method, runs in entry.cells(results).items()}
    found = {float(epochs): error(cells.get(name, {})) for epochs, name in EPOCHS.items()}
    return against("paper-figure7", "Test error and warm-up", "epochs of warm-up w", found, output)


if __name__ == "__main__":
    main(__doc__, ENTRIES, rebuild)
