"""Table 1: test errors on CIFAR-10, CIFAR-100 and SVHN, three seeds each."""

from pathlib import Path

from entries import TABLE1 as ENTRIES
from entries import main, paper_table

COLUMNS = {
    "standard": "standard",
    "autoaugment-cifar10": "AutoAugment",
    "randaugment": "RandAugment, tuned",
    "madao": "MADAO",
    "uniform": "untrained policy",
    "trivialaugment": "TrivialAugment",
    "deflated": "madao's own",
}


def rebuild(results: Path, _: Path) -> str:
    return paper_table(ENTRIES, results, COLUMNS, {"autoaugment-cifar10": "autoaugment"})


if __name__ == "__main__":
    main(__doc__, ENTRIES, rebuild)
