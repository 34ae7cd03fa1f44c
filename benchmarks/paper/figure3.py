"""Figure 3: test error against the number of inner steps s, CIFAR-10, WideResNet-28-2. The paper's best is s = 30.

Sixty epochs here, where the paper has two hundred.
"""

from pathlib import Path

from entries import SHORT, SHORTER, against, main

STEPS = {1: "s1", 5: "s5", 10: "s10", 30: "learned", 60: "s60", 120: "s120"}
ENTRIES = [SHORTER.only(*STEPS.values())]


def rebuild(results: Path, output: Path) -> str:
    cells = ENTRIES[0].cells(results)
    found = {float(steps): cells.get(name, {}) for steps, name in STEPS.items()}
    return against("paper-figure3", f"Test error and inner steps, {SHORT} epochs", "inner steps s", found, output)


if __name__ == "__main__":
    main(__doc__, ENTRIES, rebuild)
