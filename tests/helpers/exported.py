"""Policies to export, files written and loaded as a user would, and images augmented without an export."""

import importlib.util
import itertools
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

import torch
from torch import Tensor

from madao.cli import main
from madao.export import export
from madao.ops import OPERATIONS, PAPER, Operation
from madao.ops.geometric import Fill
from madao.policy import Draw, FrozenPolicy, OperationParams, PolicySpec

GEOMETRIC = [name for name in PAPER if OPERATIONS[name].geometric]
_counter = itertools.count()


def uneven() -> PolicySpec:
    """Return three stages with uneven probabilities, some 0 or 1, and different magnitudes."""
    operations = tuple(OPERATIONS[name] for name in PAPER)
    stages = []
    for stage in range(3):
        shares = [0.0 if (i + stage) % 7 == 3 or i == 13 else 1.0 + (5 * i + stage) % 6 for i in range(14)]
        entries = []
        for i, operation in enumerate(operations):
            application = (0.0, 1.0, 0.35, 0.8)[(i + stage) % 4]
            entries.append(
                OperationParams.rounded(operation, shares[i] / sum(shares), application, (i + 3 * stage + 1) / 21)
            )
        stages.append(tuple(entries))
    return PolicySpec(operations, tuple(stages))


def single(name: str, magnitude: float, fill: Fill = 0.0, application: float = 1.0) -> PolicySpec:
    """Return a policy of one operation."""
    operation = OPERATIONS[name]
    return PolicySpec((operation,), ((OperationParams.rounded(operation, 1.0, application, magnitude),),), fill)


def write(spec: PolicySpec, target: str, folder: Path) -> Path:
    """Export a policy by the command, and return the path."""
    source = folder / f"source{next(_counter)}.json"
    spec.save(source)
    out = folder / f"exported{next(_counter)}{'.json' if target == 'json' else '.py'}"
    assert main(["export", str(source), "--to", target, "--out", str(out)]) == 0
    return out


def load(spec: PolicySpec, target: str, folder: Path) -> ModuleType:
    """Export a policy by the command, and import the module."""
    path = write(spec, target, folder)
    found = importlib.util.spec_from_file_location(path.stem, path)
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    sys.modules[path.stem] = module
    found.loader.exec_module(module)
    return module


def draw_of(steps: Sequence[Sequence[float]]) -> Draw:
    """Return one image's steps (operation, applied, magnitude, sign) as a `Draw`."""
    choice, applied, magnitude, sign = zip(*steps, strict=True)
    return Draw(
        choice=torch.tensor(choice)[:, None],
        applied=torch.tensor(applied)[:, None],
        magnitude=torch.tensor(magnitude, dtype=torch.float32)[:, None],
        sign=torch.tensor(sign, dtype=torch.float32)[:, None],
    )


def reference(spec: PolicySpec, image: Tensor, steps: Sequence[Sequence[float]]) -> Tensor:
    """Augment one image with `FrozenPolicy.augment`."""
    return FrozenPolicy(spec).augment(image[None], draw_of(steps))[0]


def swirl(images: Tensor, value: Tensor, fill: Fill = 0.0) -> Tensor:
    """Mirror images, as an operation that a user registers."""
    return images.flip(-1)


def with_swirl(application: float = 1.0) -> PolicySpec:
    """Return a policy with an operation that moves pixels and has no matrix."""
    operation = Operation("Swirl", swirl, (0.0, 1.0), geometric=True)
    return PolicySpec((operation,), ((OperationParams(1.0, application, 1.0),),))


def assert_tidy(spec: PolicySpec, folder: Path) -> None:
    """Check with ruff that the exported Python file has the format and style of code written by hand."""
    text = export(spec, "python")
    assert max(map(len, text.splitlines())) <= 120
    path = folder / "policy_python.py"
    path.write_text(text)
    ruff = shutil.which("ruff") or str(Path(sys.executable).with_name("ruff"))
    options = ["--isolated", "--line-length=120"]
    chosen = "--select=E,F,W,I,B,C4,D,UP,SIM,RET"
    ignored = "--ignore=D105,D107,D203,D213,D413,D407,D406"
    checked = subprocess.run([ruff, "check", *options, chosen, ignored, str(path)], capture_output=True, text=True)
    assert checked.returncode == 0, checked.stdout
    formatted = subprocess.run([ruff, "format", "--diff", *options, str(path)], capture_output=True, text=True)
    assert formatted.returncode == 0, formatted.stdout
