"""Which code runs."""

import subprocess
from pathlib import Path


def commit() -> str | None:
    """The commit of the checkout madao is run from, `-dirty` where files were changed; None where it is installed."""
    root = Path(__file__).parents[3]
    if not (root / ".git").exists():
        return None
    try:
        found = subprocess.run(
            ["git", "describe", "--always", "--dirty"], capture_output=True, text=True, check=True, cwd=root
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return found.stdout.strip()
