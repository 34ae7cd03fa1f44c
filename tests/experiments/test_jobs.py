"""Several trainings: what they are told, what they tell, and how they end."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from madao.config.train_config import DataConfig, TrainConfig
from madao.errors import UserError
from madao.experiments.jobs import Job, JobPool
from madao.training.interrupt import Interrupted
from tests.helpers.run_directories import write_run


def job(folder: Path, name: str = "one", **settings: Any) -> Job:
    return Job(name, TrainConfig(out=str(folder / name), resume=True, **settings))


def trains_until_stopped(config: TrainConfig, *_: Any) -> None:
    """A job that writes its checkpoint a second after a first SIGTERM, and dies of a second one after half a second."""
    told = time.monotonic()

    def stop(number: int, _: FrameType | None) -> None:
        nonlocal told
        if signal.getsignal(signal.SIGTERM) is again:
            return
        told = time.monotonic()
        signal.signal(signal.SIGTERM, again)

    def again(number: int, _: FrameType | None) -> None:
        if time.monotonic() - told > 0.5:
            os._exit(9)

    signal.signal(signal.SIGTERM, stop)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
    Path(str(config.out)).mkdir()
    while signal.getsignal(signal.SIGTERM) is not again:
        time.sleep(0.02)
    time.sleep(1.0)
    Path(f"{config.out}.pt").touch()
    sys.exit(143)


def begun(folder: Path, *names: str) -> None:
    end = time.monotonic() + 60
    while not all((folder / name).exists() for name in names):
        assert time.monotonic() < end
        time.sleep(0.05)


def stopped_by_its_group(folder: str) -> None:
    """Run a pool of two jobs in a process of its own."""
    pool = JobPool(2, target=trains_until_stopped)
    try:
        pool.run(job(Path(folder), name) for name in ("a", "b"))
    except Interrupted as stop:
        sys.exit(stop.exit_code if not pool.problems else 1)


def test_a_signal_to_the_whole_group_lets_every_job_write_its_checkpoint(tmp_path: Path) -> None:
    """As `timeout` and scancel send it: the server that forks the processes gets it too."""
    script = f"from tests.experiments.test_jobs import *; stopped_by_its_group({str(tmp_path)!r})"
    with (tmp_path / "errors").open("w") as errors:
        process = subprocess.Popen([sys.executable, "-c", script], stderr=errors, start_new_session=True)
    begun(tmp_path, "a", "b")
    os.killpg(process.pid, signal.SIGTERM)
    assert process.wait(60) == 143
    assert {path.name for path in tmp_path.glob("*.pt")} == {"a.pt", "b.pt"}  # not some time later
    assert (tmp_path / "errors").read_text() == ""


def test_an_error_of_the_source_lets_jobs_write_their_checkpoints(tmp_path: Path) -> None:
    def source() -> Iterator[Job]:
        yield job(tmp_path, "a")
        begun(tmp_path, "a")
        raise UserError("database is locked")

    with pytest.raises(UserError, match="locked"):
        JobPool(2, target=trains_until_stopped).run(source())
    assert (tmp_path / "a.pt").exists()


def ends(config: TrainConfig, name: str, size: int, channel: Connection, first: bool) -> None:
    """Succeed, or fail in the way that the name says."""
    match name.split():
        case ["killed"]:
            os.kill(os.getpid(), signal.SIGKILL)
        case ["fails", code]:
            sys.exit(int(code))
        case ["tells", *_]:
            channel.send(f"{name}, {first=}")
            sys.exit(2)
        case ["good"]:
            write_run(Path(str(config.out)), epochs=1)


def test_one_failure_stops_no_other_job_and_each_end_is_told(tmp_path: Path) -> None:
    told: list[tuple[str, str | None]] = []
    names = ["killed", "tells a", "fails 3", "good", "tells b", "fails 0"]  # and the last without a result
    write_run(tmp_path / "finished", epochs=1)
    pool = JobPool(1, lambda job, problem: told.append((job.name, problem)), ends)
    pool.run(job(tmp_path, name) for name in ["finished", *names])
    assert [name for name, _ in told] == names  # none of the one that was finished before
    assert {name: problem for name, problem in told if problem is not None} == pool.problems
    assert pool.problems["killed"].startswith("it was killed")
    assert pool.problems["tells a"] == "tells a, first=False"
    assert "code 3" in pool.problems["fails 3"]
    assert pool.problems.keys() == {*names} - {"good"}


def test_the_first_job_is_told_that_it_is_and_the_same_failure_twice_ends_all(tmp_path: Path) -> None:
    pool = JobPool(1, target=ends)
    pool.run(job(tmp_path, name) for name in ("tells a", "fails 4", "tells b"))
    assert pool.problems["tells a"] == "tells a, first=True"
    assert "tells b" in pool.problems
    same = JobPool(1, target=ends)
    same.run(job(tmp_path, name) for name in ("fails 4", "fails  4", "good"))
    assert same.problems.keys() == {"fails 4", "fails  4"}


def test_a_job_is_taken_when_it_can_start_and_none_waits_for_an_end(tmp_path: Path) -> None:
    pool = JobPool(2, target=ends)
    running: list[int] = []

    def source() -> Iterator[Job | None]:
        for name in "abc":
            running.append(len(pool._running))
            yield job(tmp_path, f"tells {name}")
        while len(pool.problems) < 3:
            yield None
        yield job(tmp_path, "tells d")
        yield None  # nothing is left to wait for once d has ended
        yield None
        running.append(99)

    pool.run(source())
    assert pool.problems.keys() == {f"tells {name}" for name in "abcd"}
    assert max(running) < 2


def test_a_long_message_does_not_block_the_pipe(tmp_path: Path) -> None:
    pool = JobPool()
    pool.run([job(tmp_path, data=DataConfig(name="folder", root="/".join(["x" * 200] * 500)))])
    assert 1000 < len(pool.problems["one"]) < 4000


_TWO_JOBS = """
import sys
from madao.config.train_config import TrainConfig
from madao.experiments.jobs import Job, JobPool

few = {"epochs": 1, "batch_size": 512, "logger": "none", "device": "cpu"}
pool = JobPool(1)
pool.run(Job(name, TrainConfig(out=f"{sys.argv[1]}/{name}", **few)) for name in ("one", "two"))
assert pool.problems == {}
"""


def test_each_training_warns_of_few_outer_steps_and_the_first_describes_the_run(tmp_path: Path) -> None:
    # In a process of its own: jobs print where the server that starts them did when it began.
    command = [sys.executable, "-c", _TWO_JOBS, str(tmp_path)]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    assert sum("small-cnn" in line for line in lines) == 1
    first, second = (line for line in lines if "raise" in line)
    assert second.startswith("two: ")
    assert second.removeprefix("two: ") in first
