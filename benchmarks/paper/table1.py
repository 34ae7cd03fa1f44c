"""Table 1: test errors on CIFAR-10, CIFAR-100 and SVHN, three seeds each, and the time of training.

Minutes are those of trainings that shared a GPU, as the records note. Compare them only between methods of one entry,
and only if these trained at the same time.
"""

from pathlib import Path

from entries import TABLE1 as ENTRIES
from entries import cost_table, main, paper_table

COLUMNS = {
    "base": "base augmentation",
    "autoaugment-cifar10": "AutoAugment",
    "randaugment": "RandAugment tuned",
    "randaugment-mild": "RandAugment at 0.06",
    "learned": "the paper's method",
    "uniform": "uniform policy",
    "trivialaugment": "TrivialAugment",
    "deflated": "influence, deflated",
    "same-loss": "influence, deflated, same-loss (-plus)",
}


def rebuild(results: Path, _: Path) -> str:
    errors = paper_table(ENTRIES, results, COLUMNS, {"autoaugment-cifar10": "autoaugment"})
    costs = cost_table(ENTRIES, results, COLUMNS)
    company = "Minutes are of trainings that shared a GPU, up to ten at a time, and not always with as many."
    return f"{errors}\n\n{costs}\n\n{company}" if costs else errors


if __name__ == "__main__":
    main(__doc__, ENTRIES, rebuild)
