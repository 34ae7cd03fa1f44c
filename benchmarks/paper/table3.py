"""Table 3: test errors on fine-grained data, ResNet-18, three seeds each."""

from pathlib import Path

from entries import TABLE3 as ENTRIES
from entries import main, paired, paper_table

COLUMNS = {
    "base": "base augmentation",
    "randaugment": "RandAugment tuned",
    "learned": "MADAO",
    "uniform": "uniform policy",
    "uniform-moderate": "the same at 0.3 of the ranges",
    "uniform-strong": "at 0.9",
    "geometric": "geometric operations only",
    "beyond": "fixed, from influences in three trainings (beyond.json)",
    "pooled": "fixed, from influences in many trainings (pooled.json)",
    "trivialaugment": "TrivialAugment",
    "deflated-256": "madao's own",
    "same-loss-256": "madao's own, same-loss",
    "pulled-256": "madao's own, pulled back to the start",
    "strength-256": "madao's own, application and magnitude only",
}

REFERENCES = ("randaugment", "trivialaugment", "uniform", "base")


def rebuild(results: Path, _: Path) -> str:
    differences = (paired(entry, results, COLUMNS, REFERENCES) for entry in ENTRIES)
    return "\n\n".join(table for table in (paper_table(ENTRIES, results, COLUMNS), *differences) if table)


if __name__ == "__main__":
    main(__doc__, ENTRIES, rebuild)
