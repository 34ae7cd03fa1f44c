"""Not in the paper: what of the method matters. CIFAR-10, WideResNet-28-2, the paper's settings but for one.

Influence in place of the relaxation; no products with the Hessian; each step up or down the gradient by a fair coin;
the policy as it starts. Then madao's own: without training gradients (deflated) or by conjugate gradients
(gauss-newton), and what is meant to keep policies from becoming narrow.
"""

from pathlib import Path

from entries import TABLE1, Entry, error, main, percent

ROWS = {
    "madao": "the paper's: relaxed, Neumann J = 5",
    "influence": "influence, Neumann J = 5",
    "identity": "relaxed, no products",
    "random-sign": "relaxed, Neumann J = 5, random sign",
    "uniform": "no learning",
    "deflated": "madao's own: influence, deflated",
    "gauss-newton": "influence, conjugate gradients",
    "pulled": "deflated, drawn back to the start",
    "strength": "deflated, how often and how strongly, all operations alike",
    "averaged": "deflated, at averaged weights",
    "varied": "deflated, any strength up to the learned one",
    "uniform-varied": "no learning, any strength up to that at the start",
}
OWN = ("gauss-newton", "pulled", "strength", "averaged", "varied", "uniform-varied")
ENTRIES = [
    TABLE1[0].only("madao", "uniform", "deflated"),
    Entry("cifar10-wrn-28-2", ("influence", "identity", "random-sign", *OWN), "-ablations"),
]


def rebuild(results: Path, _: Path) -> str:
    cells = {method: runs for entry in ENTRIES for method, runs in entry.cells(results).items()}
    lines = ["| | test error, % |", "| --- | --- |"]
    for method, title in ROWS.items():
        found = error(cells.get(method, {}))
        lines.append(f"| {title} | {'missing' if found is None else percent(found)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main(__doc__, ENTRIES, rebuild)
