"""Several processes against one: the same training, to rounding; and what becomes of them when one is killed."""

import dataclasses
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from madao.data import Batches, Pixels
from madao.hypergrad import Place, Ranks, Unrolled, hypergradient
from madao.policy import Policy, Standard
from madao.training.config import OuterConfig, TrainConfig
from madao.training.drawing import drawn, drawn_standard, part_of
from madao.training.errors import SharedError, UserError
from madao.training.parallel import by_the_first, synchronised
from madao.training.result import Result
from tests.hypergrad.problems import quadratic
from tests.training.processes import CASES

ROOT = Path(__file__).parents[2]
SETTINGS = ["--device=cpu", "--data.planted=rotate", "--batch_size=63", "--augment.crop=none", "--tensorboard=false"]
SETTINGS += ["--outer.every=5", "--outer.warmup=1"]


def environment() -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"}


def started(*command: str) -> subprocess.Popen[str]:
    """In a group of its own, so that all of it can be ended."""
    return subprocess.Popen(
        [sys.executable, *command],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=environment(),
        start_new_session=True,
    )


def ended(process: subprocess.Popen[str], seconds: float = 120) -> str:
    """Its output. What is left of the group after that time is killed."""
    try:
        return process.communicate(timeout=seconds)[0]
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        pytest.fail(f"still running after {seconds} seconds: {process.communicate()[0]}")


def train(out: Path, *settings: str) -> list[str]:
    return ["-m", "madao", "train", *SETTINGS, f"--out={out}", *settings]


def torchrun(*settings: str) -> list[str]:
    return ["-m", "torch.distributed.run", *settings]


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[int, int], dict[str, Any]]:
    """What 1, 2 and 3 processes wrote down, by number of processes and rank."""
    folder = tmp_path_factory.mktemp("processes")
    ranks = [(world, rank) for world in (1, 2, 3) for rank in range(world)]
    running = [started("-m", "tests.training.processes", str(folder), str(r), str(w)) for w, r in ranks]
    outputs = [ended(process, 300) for process in running]
    for process, output in zip(running, outputs, strict=True):
        assert process.returncode == 0, output
    return {(w, r): torch.load(folder / f"{w}-{r}.pt", weights_only=True) for w, r in ranks}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("world", [2, 3])
def test_several_processes_train_as_one_does(
    results: dict[tuple[int, int], dict[str, Any]], world: int, case: str
) -> None:
    alone = results[1, 0][case]
    for rank in range(world):
        found = results[world, rank][case]
        assert len(found["seen"]) == len(alone["seen"]) == 20
        for mine, expected in zip(found["seen"], alone["seen"], strict=True):
            for name in ("q", "grads"):
                torch.testing.assert_close(mine[name], expected[name], rtol=1e-8, atol=1e-8)
            torch.testing.assert_close(mine["numbers"], expected["numbers"], rtol=1e-8, atol=1e-8, equal_nan=True)
        for kind in ("weights", "policy"):
            torch.testing.assert_close(found[kind], alone[kind], rtol=1e-8, atol=1e-8)
            for name, value in found[kind].items():
                assert torch.equal(value, results[world, 0][case][kind][name]), "the same on every process, to the bit"
    assert any((value != 0.5).any() for value in alone["policy"].values())


@pytest.mark.parametrize(
    ("case", "vectors"), [("influence, deflated", 2), ("influence, v itself", 1), ("relaxed, neumann", 4)]
)
def test_an_outer_step_sums_few_vectors_as_large_as_the_model(
    results: dict[tuple[int, int], dict[str, Any]], case: str, vectors: int
) -> None:
    """As `benchmarks/speed/communication.py` has it: beside these only the policy's gradient and the influences."""
    found = results[2, 0][case]
    size = sum(value.numel() for value in found["weights"].values())
    summed = found["seen"][1]["summed"]  # at the first one the residual is measured too
    assert vectors * size < summed <= vectors * size + 150


def test_a_batch_is_shared_without_loss() -> None:
    images = Pixels(torch.arange(23, dtype=torch.uint8).reshape(23, 1, 1, 1), torch.arange(23))
    whole = Batches(images, 5, torch.device("cpu"), seed=3, drop_last=False)
    parts = [Batches(images, 5, torch.device("cpu"), 3, drop_last=False, rank=rank, world=4) for rank in range(4)]
    expected = [labels for _, labels in whole.epoch(1)]
    shares = [[labels for _, labels in part.epoch(1)] for part in parts]
    assert [len(labels) for labels in shares[0]] == [2, 2, 2, 2, 1]
    assert [len(share) for share in shares] == [5, 5, 5, 4]  # of the last batch of three nothing is left for the fourth
    for number, labels in enumerate(expected):
        assert torch.equal(torch.cat([share[number] for share in shares if number < len(share)]), labels)
        for rank, share in enumerate(shares):
            place = part_of(len(labels), Ranks(rank, 4))
            assert place.total == len(labels)
            if len(place):
                assert torch.equal(share[number], labels[place.start : place.stop])
    streamed = parts[1].stream(4)
    assert torch.equal(next(streamed)[1], [labels for _, labels in parts[1].epoch(0)][4])


def test_every_process_draws_for_all_and_takes_its_own() -> None:
    images, labels = torch.rand(7, 3, 8, 8), torch.zeros(7, dtype=torch.int64)
    whole = Policy(seed=5).sample(images)
    holes = Standard(seed=5, padding=2).sample(images)
    for rank in range(3):
        place = part_of(7, Ranks(rank, 3))
        own = images[place.start : place.stop]
        mine = drawn(Policy(seed=5), own, labels[: len(own)], place)
        standard = drawn_standard(Standard(seed=5, padding=2), own, place)
        assert torch.equal(mine.choice, whole.choice[:, place.start : place.stop])
        assert torch.equal(mine.magnitude, whole.magnitude[:, place.start : place.stop])
        assert torch.equal(standard.hole_x, holes.hole_x[place.start : place.stop])
        assert torch.equal(standard.top, holes.top[place.start : place.stop])
    policies = [Policy(seed=5) for _ in range(2)]
    for rank, policy in enumerate(policies):
        place = part_of(7, Ranks(rank, 2))
        drawn(policy, images[place.start : place.stop], labels[: len(place)], place)
    assert torch.equal(policies[0].sample(images).choice, policies[1].sample(images).choice)


def test_places() -> None:
    assert Place.of(1, [3, 2, 4]) == Place(3, 5, 9)
    assert len(Place(3, 5, 9)) == 2
    assert [part_of(8, Ranks(rank, 3)) for rank in range(3)] == [Place(0, 3, 8), Place(3, 6, 8), Place(6, 8, 8)]


def test_unrolling_is_for_one_process() -> None:
    problem = quadratic().problem
    with pytest.raises(ValueError, match="Unrolled does not work over several processes"):
        hypergradient(dataclasses.replace(problem, ranks=Ranks(0, 2)), Unrolled(2))


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
    assert result.validation_error < 0.6


def children(pid: int) -> list[int]:
    found = subprocess.run(["ps", "-o", "pid=", "--ppid", str(pid)], capture_output=True, text=True).stdout.split()
    return [int(child) for child in found]


@pytest.mark.parametrize("by", ["madao", "torchrun"])
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
    """Two addresses, a `torchrun` each, which know only each other's address."""
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


def test_batch_statistics_are_shared_by_gpus_only() -> None:
    network, gpu = nn.Sequential(nn.BatchNorm2d(3)), torch.device("cuda", 0)
    with pytest.raises(UserError, match="--sync_batch_norm needs GPUs"):
        synchronised(network, TrainConfig(), torch.device("cpu"))
    with pytest.raises(UserError, match=r"does not go with --outer.mode train"):
        synchronised(network, TrainConfig(outer=OuterConfig(mode="train")), gpu)
    assert isinstance(synchronised(network, TrainConfig(), gpu)[0], nn.SyncBatchNorm)  # type: ignore[index]


def test_mistakes_are_said_once(tmp_path: Path) -> None:
    for settings, message in (
        (["--data.planted=none", f"--data.root={tmp_path / 'typo'}"], "typo"),
        (["--batch_size=1"], "a batch of 1 images cannot be shared by 2 processes"),
    ):
        process = started("-m", "madao", "train", *SETTINGS, "--devices=2", f"--out={tmp_path / 'run'}", *settings)
        output = ended(process)
        assert process.returncode == 2, output
        assert output.count(message) == 1, output
        assert "Traceback" not in output


class Distant(Ranks):
    """The second of two, as far as this process knows: what the first one says is given."""

    says: Any = (None, None)

    def told(self, value: Any) -> Any:
        return self.says


def test_what_the_first_one_finds_wrong_stops_the_others() -> None:
    other = Distant(1, 2)
    done: list[int] = []
    object.__setattr__(other, "says", ("result", None))
    assert by_the_first(other, lambda: done.append(1)) == "result"
    assert not done
    assert by_the_first(other, lambda: "own", again=True) == "own"
    object.__setattr__(other, "says", (None, "no disk"))
    with pytest.raises(SharedError, match="no disk"):
        by_the_first(other, lambda: None)
    with pytest.raises(ValueError, match="of the program"):
        by_the_first(Ranks(), _fails)
    assert by_the_first(Ranks(), lambda: 3) == 3


def _fails() -> None:
    raise ValueError("of the program")
