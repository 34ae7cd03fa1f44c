"""Whole runs of several processes: resumed by another number of processes, killed, on two hosts, and with mistakes."""

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from madao.training.run.result import Result
from tests.helpers.launching import SETTINGS, ended, started, torchrun, train


def waited_for(path: Path, process: subprocess.Popen[str]) -> None:
    while not path.exists():
        assert process.poll() is None, process.communicate()[0]
        time.sleep(0.05)


def test_a_run_goes_on_with_another_number_of_processes(tmp_path: Path) -> None:
    out = tmp_path / "run"
    process = started(*train(out, "--epochs=8", "--devices=2"))
    waited_for(out / "checkpoints" / "last.pt", process)
    os.killpg(process.pid, signal.SIGINT)
    output = ended(process)
    assert process.returncode == 130, output
    assert output.count("a checkpoint is written") == 1
    assert "Traceback" not in output
    assert not (out / "result.json").exists()
    process = started(
        *torchrun("--standalone", "--nproc-per-node=3", "-m", "madao", "train", f"--out={out}", "--resume")
    )
    output = ended(process)
    assert process.returncode == 0, output
    assert output.count("test error") == 1
    rows = (out / "metrics.csv").read_text().splitlines()[1:]
    assert [int(row.split(",")[0]) for row in rows] == list(range(1, 9))
    result = Result.load(out)
    assert result is not None
    assert result.validation_error is not None
    assert result.validation_error < 0.6


def children(pid: int) -> list[int]:
    found = subprocess.run(["ps", "-o", "pid=", "--ppid", str(pid)], capture_output=True, text=True).stdout.split()
    return [int(child) for child in found]


@pytest.mark.parametrize("by", ["madao", pytest.param("torchrun", marks=pytest.mark.slow)])
def test_a_killed_process_ends_the_run_and_leaves_the_checkpoint(tmp_path: Path, by: str) -> None:
    out = tmp_path / "run"
    command = train(out, "--epochs=200", "--devices=2")
    if by == "torchrun":
        command = torchrun("--standalone", "--nproc-per-node=2", *command)
    process = started(*command)
    waited_for(out / "checkpoints" / "last.pt", process)
    workers = children(process.pid)
    began = time.monotonic()
    os.kill(workers[-1], signal.SIGKILL)
    output = ended(process, 60)
    assert process.returncode != 0, output
    assert time.monotonic() - began < 60
    assert torch.load(out / "checkpoints" / "last.pt", weights_only=True)["epoch"] >= 1


def test_two_hosts(tmp_path: Path) -> None:
    """Each host has an address and a `torchrun` of its own."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    hosts = [
        started(
            *torchrun(
                "--nnodes=2",
                "--nproc-per-node=1",
                f"--node-rank={node}",
                "--master-addr=127.0.0.1",
                f"--master-port={port}",
                f"--local-addr=127.0.0.{node + 1}",
            ),
            *train(tmp_path / "run", "--epochs=2"),
        )
        for node in range(2)
    ]
    outputs = [ended(host) for host in hosts]
    assert [host.returncode for host in hosts] == [0, 0], outputs
    assert "test error" in outputs[0]
    assert "test error" not in outputs[1]
    result = Result.load(tmp_path / "run")
    assert result is not None
    assert result.epoch == 2


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        pytest.param(["--data.shift=none", "--data.root=typo"], "typo", marks=pytest.mark.slow),
        (["--batch_size=1"], "a batch of 1 images cannot be shared by 2 processes"),
    ],
)
def test_a_mistake_is_said_once(tmp_path: Path, settings: list[str], message: str) -> None:
    process = started("-m", "madao", "train", *SETTINGS, "--devices=2", f"--out={tmp_path / 'run'}", *settings)
    output = ended(process)
    assert process.returncode == 2, output
    assert output.count(message) == 1, output
    assert "Traceback" not in output


_LEAVING = """
import atexit
from pathlib import Path

import torch

from madao.distributed.launch import launch


def main():
    fabric = launch(torch.device("cpu"), 2, 1, half=False)
    network = torch.nn.Linear(2, 2)
    model, optimizer = fabric.setup(network, torch.optim.SGD(network.parameters(), 0.1))
    model.cycle = model
    fabric.backward(model(torch.ones(1, 2)).sum())


def left():
    names = [path.read_text() for path in Path("/proc/self/task").glob("*/comm")]
    print(f"left: {[name for name in names if 'gloo' in name]}\\n", end="", flush=True)  # at once, beside the other's


atexit.register(left)
main()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="looks at /proc")
def test_no_thread_that_moves_tensors_outlives_python(tmp_path: Path) -> None:
    script = tmp_path / "leaving.py"
    script.write_text(_LEAVING)
    process = started(*torchrun("--standalone", "--nproc-per-node=2", str(script)))
    output = ended(process)
    assert process.returncode == 0, output
    assert output.count("left: []") == 2, output
