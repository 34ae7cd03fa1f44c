"""Not in the paper: what of the method matters. CIFAR-10, WideResNet-28-2, sixty epochs, the same budget for all.

First what learns nothing. Then the paper's settings but for one: influence in place of the relaxation; no products with
the Hessian; each step up or down the gradient by a fair coin. Then madao's own: influence along v, without training
gradients (deflated), or by conjugate gradients; and what is meant to answer greed and narrow policies.
"""

from pathlib import Path

from entries import SHORTER, error, main, percent

ROWS = {
    "standard": "crop, flip, Cutout",
    "uniform": "no learning",
    "uniform-varied": "no learning, any strength up to that at the start",
    "trivialaugment": "TrivialAugment",
    "madao": "the paper's: relaxed, Neumann J = 5",
    "influence": "influence, Neumann J = 5",
    "identity": "relaxed, no products",
    "random-sign": "relaxed, Neumann J = 5, random sign",
    "along-v": "influence on 2048 images, no products",
    "deflated": "madao's own: the same, deflated",
    "gauss-newton": "the same, conjugate gradients",
    "which": "deflated, which operations only",
    "strength": "deflated, how often and how strongly, all operations alike",
    "late": "deflated, in the second half only",
    "averaged": "deflated, at averaged weights",
    "pulled": "deflated, drawn back to the start",
    "varied": "deflated, any strength up to the learned one",
}
ENTRIES = [SHORTER.only(*ROWS)]


def rebuild(results: Path, _: Path) -> str:
    cells = ENTRIES[0].cells(results)
    lines = ["| | test error, % |", "| --- | --- |"]
    for method, title in ROWS.items():
        found = error(cells.get(method, {}))
        lines.append(f"| {title} | {'missing' if found is None else percent(found)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main(__doc__, ENTRIES, rebuild)
