"""Table 2: ImageNet, ResNet-50. The paper has top-1 and top-5 errors; ours are top-1.

The table's second row is self-supervised learning by MoCo. Its recipe is imagenet-moco-resnet50 with
`madao evaluate --protocol linear`. `madao compare` does not run that, so only the paper's numbers are shown.
"""

from pathlib import Path

from entries import Entry, main, paper_table

ENTRIES = [Entry("imagenet-resnet50", ("base", "randaugment", "learned"))]
MOCO = ("missing (paper: 42.1/19.4)", "missing (paper: 39.6/17.6)", "missing (paper: 39.6/17.7)")


def rebuild(results: Path, _: Path) -> str:
    columns = {"base": "base augmentation", "randaugment": "RandAugment tuned", "learned": "MADAO"}
    moco = " | ".join(("imagenet-moco-resnet50, linear evaluation", *MOCO))
    return f"{paper_table(ENTRIES, results, columns)}\n| {moco} |"


if __name__ == "__main__":
    main(__doc__, ENTRIES, rebuild)
