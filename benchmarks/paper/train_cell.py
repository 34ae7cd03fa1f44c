"""Train one cell: `python benchmarks/paper/train_cell.py SETTINGS.yaml`.

This is `madao train --config SETTINGS.yaml`, except that torchvision checks converted data sets against the sums that
`convert.py` has written down.
"""

import sys
from pathlib import Path

import yaml
from convert import accept_converted

from madao.cli import main as madao

if __name__ == "__main__":
    settings = Path(sys.argv[1])
    root = yaml.safe_load(settings.read_text())["data"]["root"]
    if root is not None:
        accept_converted(Path(root))
    sys.exit(madao(["train", "--config", str(settings)]))
