"""Processes that read images: they end with the one that they read for."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

READS = """
import multiprocessing, os, sys, time
from pathlib import Path
from madao.data.loading import load_batches

def load(indices):
    Path(sys.argv[2], str(os.getpid())).touch()
    return indices

if __name__ == "__main__":
    multiprocessing.set_start_method(sys.argv[1])
    for batch in load_batches(load, ([number] for number in range(10**9)), workers=2):
        time.sleep(0.05)
"""


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks at processes as Linux shows them")
@pytest.mark.parametrize("start", ["fork", "forkserver"])
def test_workers_end_with_a_reader_that_is_killed(tmp_path: Path, start: str) -> None:
    script, seen = tmp_path / "reads.py", tmp_path / "seen"
    script.write_text(READS)
    seen.mkdir()
    reader = subprocess.Popen([sys.executable, str(script), start, str(seen)])
    end = time.monotonic() + 60
    while len([*seen.iterdir()]) < 2:
        assert reader.poll() is None
        assert time.monotonic() < end
        time.sleep(0.05)
    workers = [int(path.name) for path in seen.iterdir()]
    assert all(map(alive, workers))
    os.kill(reader.pid, signal.SIGKILL)
    reader.wait()
    end = time.monotonic() + 20
    while any(map(alive, workers)):
        assert time.monotonic() < end, "they wait for somebody who is gone"
        time.sleep(0.1)
