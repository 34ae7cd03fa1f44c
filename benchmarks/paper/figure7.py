"""Figure 7: test error against the epochs of warm-up w, CIFAR-10, WideResNet-28-2. In the paper: no difference.

Warm-up of 0, 3, 6 and 9 of sixty epochs here, where the paper has 0, 10, 20 and 30 of two hundred.
"""

from pathlib import Path

from entries import SHORT, SHORTER, against, main

EPOCHS = {0: "w0", 3: "w3", 6: "learned", 9: "w9"}
ENTRIES = [SHORTER.only(*EPOCHS.values())]


def rebuild(results: Path, output: Path) -> str:
    cells = ENTRIES[0].cells(results)
    found = {float(epochs): cells.get(name, {}) for epochs, name in EPOCHS.items()}
    return against("paper-figure7", "Test error and warm-up", f"epochs of warm-up, of {SHORT}", found, output)


if __name__ == "__main__":
    main(__doc__, ENTRIES, rebuild)
