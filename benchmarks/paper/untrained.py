"""Policies without training (appendix C): CIFAR-10, WideResNet-28-2. The paper: 4.7 as it starts, 4.6 learned."""

from pathlib import Path

from entries import TABLE1, main

from madao.report.compare import difference

ENTRIES = [TABLE1[0].only("uniform", "randaugment", "madao")]


def rebuild(results: Path, _: Path) -> str:
    cells = ENTRIES[0].cells(results)
    errors = {
        method: {seed: cell["test_error"] for seed, cell in cells.get(method, {}).items()}
        for method in ("uniform", "randaugment", "madao")
    }
    lines = ["| | test error, % | − untrained, paired by seed | paper |", "| --- | --- | --- | --- |"]
    for method, theirs in (("uniform", "4.7"), ("randaugment", "4.7"), ("madao", "4.6")):
        found = errors[method]
        mean = f"{100 * sum(found.values()) / len(found):.2f}" if found else "missing"
        gap = difference(found, errors["uniform"]).mean
        width = "" if gap is None or gap.half_width is None else f" ± {100 * gap.half_width:.2f}"
        shown = "–" if gap is None or method == "uniform" else f"{100 * gap.mean:+.2f}{width}"
        lines.append(f"| {method} | {mean} | {shown} | {theirs} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main(__doc__, ENTRIES, rebuild)
