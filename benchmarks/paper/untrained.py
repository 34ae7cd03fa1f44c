"""Policies without training (appendix C): CIFAR-10, WideResNet-28-2. The paper has 4.7 untrained and 4.6 learned."""

from pathlib import Path

from entries import TABLE1, error, main, markdown, percent

from madao.report.compare import difference, in_percent
from madao.text import METHOD_LABELS

PAPER = {"uniform": "4.7", "randaugment": "4.7", "learned": "4.6"}
ENTRIES = [TABLE1[0].only(*PAPER)]


def rebuild(results: Path, _: Path) -> str:
    cells = ENTRIES[0].cells(results)
    errors = {method: {seed: cell["test_error"] for seed, cell in cells.get(method, {}).items()} for method in PAPER}
    rows = [["", "test error, %", "− untrained, paired by seed", "paper"], ["---"] * 4]
    for method, theirs in PAPER.items():
        found = error(cells.get(method, {}))
        gap = None if method == "uniform" else difference(errors[method], errors["uniform"]).mean
        rows.append(
            [
                METHOD_LABELS.get(method, method),
                "missing" if found is None else percent(found),
                in_percent(gap, signed=True),
                theirs,
            ]
        )
    return markdown(rows)


if __name__ == "__main__":
    main(__doc__, ENTRIES, rebuild)
