"""Convert image trees of public repositories to torchvision's layout.

    python benchmarks/paper/convert.py cifar100 TREE DESTINATION

`TREE` holds `train/CLASS/*.png` and `test/CLASS/*.png`. For CIFAR-100 this is a checkout of the GitHub repository
cyizhuo/CIFAR-100-dataset. `DESTINATION` then holds `cifar-100-python/` with `train`, `test` and `meta`, which
`torchvision.datasets.CIFAR100` reads.

The images and labels are those of the original. Their order is not, because the tree does not keep it: this script
orders each split by a permutation of seed 0. The files therefore cannot have the MD5 sums that torchvision checks. The
script writes the sums they do have into `DESTINATION/converted.json`. `accept_converted` makes torchvision check these
instead; `train_cell.py` calls it.
"""

import argparse
import hashlib
import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

RECORD = "converted.json"
SIDE = 32


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dataset", choices=["cifar100"])
    parser.add_argument("tree", type=Path, help="the folder with train/ and test/")
    parser.add_argument("destination", type=Path, help="the folder that --data.root names later")
    arguments = parser.parse_args()
    print("\n".join(cifar100(arguments.tree, arguments.destination)))


def cifar100(tree: Path, destination: Path) -> list[str]:
    """Write `cifar-100-python/` and the record of its checksums.

    Args:
        tree: The folder with `train/CLASS/*.png` and `test/CLASS/*.png`.
        destination: The folder that will hold `cifar-100-python/`.

    Returns:
        One line per file: its MD5 sum, and whether torchvision expects this sum.

    Raises:
        SystemExit: If the two splits have different classes, or an image is not 32 × 32 RGB.
    """
    from torchvision.datasets import CIFAR100

    folder = destination / CIFAR100.base_folder
    folder.mkdir(parents=True, exist_ok=True)
    classes = class_names(tree / "train")
    if class_names(tree / "test") != classes:
        raise SystemExit(f"{tree}: train and test have different class folders")
    contents: dict[str, dict[str, Any]] = {split: read_split(tree / split, classes) for split in ("train", "test")}
    contents["meta"] = {"fine_label_names": classes}
    expected = dict([*CIFAR100.train_list, *CIFAR100.test_list, [CIFAR100.meta["filename"], CIFAR100.meta["md5"]]])
    lines, found = [], {}
    for name, content in contents.items():
        data = pickle.dumps(content, protocol=4)
        (folder / name).write_bytes(data)
        found[name] = hashlib.md5(data).hexdigest()
        same = "the original's" if found[name] == expected[name] else f"not the original's {expected[name]}"
        count = f"{len(content['fine_labels'])} images" if "fine_labels" in content else f"{len(classes)} classes"
        lines.append(f"{name}: {count}, MD5 {found[name]}, {same}")
    write_record(destination, "CIFAR100", found)
    lines.append("images and labels are the original's, their order is not; train_cell.py accepts these files")
    return lines


def class_names(split: Path) -> list[str]:
    """List the class folders in alphabetical order, which is the order of the labels."""
    names = sorted(path.name for path in split.iterdir() if path.is_dir())
    if not names:
        raise SystemExit(f"{split} holds no class folders")
    return names


def read_split(split: Path, classes: list[str]) -> dict[str, Any]:
    """Read a split's images in the order of a permutation of seed 0.

    Args:
        split: The folder with a folder per class.
        classes: Their names in the order of the labels.

    Returns:
        `filenames`, `fine_labels` and `data` (uint8 `[N, 3072]`, channel by channel), as in CIFAR-100's own files.
    """
    files = [(path, label) for label, name in enumerate(classes) for path in sorted((split / name).glob("*.png"))]
    files = [files[index] for index in np.random.default_rng(0).permutation(len(files))]
    data = np.empty((len(files), 3 * SIDE * SIDE), np.uint8)
    for row, (path, _) in zip(data, files, strict=True):
        with Image.open(path) as image:
            pixels = np.asarray(image)
        if pixels.shape != (SIDE, SIDE, 3) or pixels.dtype != np.uint8:
            raise SystemExit(f"{path} is {pixels.dtype} {list(pixels.shape)}, expected uint8 [{SIDE}, {SIDE}, 3]")
        row[:] = pixels.transpose(2, 0, 1).reshape(-1)
    return {
        "filenames": [path.name for path, _ in files],
        "fine_labels": [label for _, label in files],
        "data": data,
    }


def write_record(destination: Path, kind: str, checksums: dict[str, str]) -> None:
    """Add a data set's MD5 sums to the record of converted data sets.

    Args:
        destination: The folder of the record.
        kind: The data set's class in `torchvision.datasets`.
        checksums: MD5 sums by file name.
    """
    path = destination / RECORD
    known = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps({**known, kind: checksums}, indent=2) + "\n")


def accept_converted(root: Path) -> list[str]:
    """Make torchvision check the MD5 sums of converted files, in this process.

    Args:
        root: The folder that holds the data sets, and `converted.json` if any of them was converted.

    Returns:
        The names of torchvision's classes that now expect other sums.
    """
    from torchvision import datasets

    path = root / RECORD
    known = json.loads(path.read_text()) if path.exists() else {}
    for kind, checksums in known.items():
        dataset = getattr(datasets, kind)
        for name in ("train_list", "test_list"):
            setattr(dataset, name, [[file, checksums[file]] for file, _ in getattr(dataset, name)])
        dataset.meta = {**dataset.meta, "md5": checksums[dataset.meta["filename"]]}
    return list(known)


if __name__ == "__main__":
    main()
