"""The record of a run's versions and machine."""

import importlib.metadata
import platform
import subprocess
from pathlib import Path

import torch


def describe_environment(device: torch.device) -> dict[str, object]:
    """Return the versions of madao, Python and torch, and the name of the device."""
    return {
        "madao": _version(),
        "commit": _commit(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "system": platform.system(),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
        "threads": torch.get_num_threads(),
    }


def _version() -> str | None:
    """Return the version of madao; None if it is not installed but runs from its sources."""
    try:
        return importlib.metadata.version("madao")
    except importlib.metadata.PackageNotFoundError:
        return None


def _commit() -> str | None:
    """Return the commit of madao's checkout, with `-dirty` if files were changed; None if it is installed."""
    root = Path(__file__).parents[4]
    if not (root / ".git").exists():
        return None
    try:
        found = subprocess.run(
            ["git", "describe", "--always", "--dirty"], capture_output=True, text=True, check=True, cwd=root
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return found.stdout.strip()
