"""Starting and ending trainings of several processes."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SETTINGS = ["--device=cpu", "--data.shift=rotate", "--batch_size=63", "--augment.crop=none", "--logger=none"]
SETTINGS += ["--outer.every=5", "--outer.warmup=1"]


def environment() -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"}


def started(*command: str) -> subprocess.Popen[str]:
    """Start Python in a new process group, so that all its processes can be ended."""
    return subprocess.Popen(
        [sys.executable, *command],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=environment(),
        start_new_session=True,
    )


def ended(process: subprocess.Popen[str], seconds: float = 120) -> str:
    """Return the output of a process. Fail, and kill its group, if it has not ended after some seconds."""
    try:
        return process.communicate(timeout=seconds)[0]
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        pytest.fail(f"still running after {seconds} seconds: {process.communicate()[0]}")


def train(out: Path, *settings: str) -> list[str]:
    return ["-m", "madao", "train", *SETTINGS, f"--out={out}", *settings]


def torchrun(*settings: str) -> list[str]:
    return ["-m", "torch.distributed.run", *settings]
