"""Several trainings: what they are told, what they tell, and how they end."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from madao.config.train_config import TrainConfig
from madao.errors import UserError
from madao.experiments import jobs
from madao.experiments.jobs import Job, JobPool
from madao.training.interrupt import Interrupted


def cell(folder: Path, name: str = "one", then: Any = None) -> Job:
    return Job(name, TrainConfig(out=str(folder / name), resume=True), then)


def _trains(config: TrainConfig, name: str, jobs: int, channel: Connection, first: bool = False) -> None:
    """A cell that writes its checkpoint half a second after it is told to stop, and dies at once when told again."""
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


@pytest.fixture
def mask() -> Iterator[None]:
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    yield
    signal.pthread_sigmask(signal.SIG_SETMASK, before)


def begun(folder: Path, *names: str) -> None:
    end = time.monotonic() + 60
    while not all((folder / name).exists() for name in names):
        assert time.monotonic() < end
        time.sleep(0.05)


def _command(folder: str) -> None:
    jobs._train = _trains
    both = JobPool(2)
    for name in ("a", "b"):
        both.add(cell(Path(folder), name))
    try:
        both.run()
    except Interrupted as stop:
        sys.exit(stop.exit_code if not both.problems else 1)


def _fails_or_not(config: TrainConfig, name: str, jobs: int, channel: Connection) -> None:
    sys.exit(3 if name == "bad" else 0)


def test_whoever_asks_is_told_of_every_cell_that_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "_train", _fails_or_not)
    told: list[str] = []
    some = JobPool(1, lambda: told.append(f"ended, problems with {[*some.problems]}"))
    for name in ("bad", "good"):
        some.add(cell(tmp_path, name, lambda _, name=name: told.append(f"then {name}")))
    some.run()
    # What a cell's end means is known by then.
    assert told[:2] == ["then bad", "ended, problems with ['bad']"]
    assert told[2] == "then good"
    assert len(told) == 4


def test_a_signal_to_the_whole_group_lets_every_cell_write_its_checkpoint(tmp_path: Path) -> None:
    """As `timeout` and scancel send it: the server that forks the cells gets it too."""
    script = f"from tests.experiments.test_jobs import _command; _command({str(tmp_path)!r})"
    command = [sys.executable, "-c", script]
    with (tmp_path / "errors").open("w") as errors:
        process = subprocess.Popen(command, stderr=errors, start_new_session=True)
    begun(tmp_path, "a", "b")
    os.killpg(process.pid, signal.SIGTERM)
    assert process.wait(60) == 143
    assert {path.name for path in tmp_path.glob("*.pt")} == {"a.pt", "b.pt"}  # not some time later
    assert (tmp_path / "errors").read_text() == ""


def test_an_error_of_ours_lets_cells_write_their_checkpoints(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "_train", _trains)
    all_of_them = JobPool(2)
    all_of_them.add(cell(tmp_path, "a"))

    def broken() -> list[Job]:
        begun(tmp_path, "a")
        raise UserError("database is locked")

    all_of_them.ask(broken)
    with pytest.raises(UserError, match="locked"):
        all_of_them.run()
    assert (tmp_path / "a.pt").exists()


def test_a_long_message_does_not_block_the_pipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mask: None) -> None:
    class Channel:
        sent = ""

        def send(self, message: str) -> None:
            self.sent = message

    for kind in (UserError, ValueError):

        def fails(config: TrainConfig, title: str, kind: type[Exception] = kind) -> None:
            raise kind("x" * 100_000)

        monkeypatch.setattr(jobs, "build_run", fails)
        channel: Any = Channel()
        with pytest.raises(SystemExit):
            jobs._train(TrainConfig(out=str(tmp_path / "out")), "one", 1, channel)
        assert 1000 < len(channel.sent) < 4000


def test_what_is_asked_for_is_taken_when_it_can_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Job, "result", property(lambda self: None))
    monkeypatch.setattr(jobs, "_train", _fails)
    all_of_them, taken, running = JobPool(2), iter("abcd"), []

    def source() -> list[Job]:
        running.append(len(all_of_them._running))
        name = next(taken, None)
        return [] if name is None else [cell(tmp_path, name)]

    all_of_them.ask(source)
    all_of_them.run()
    assert sorted(all_of_them.problems) == ["a", "b", "c", "d"]
    assert max(running) < 2


def test_the_first_cell_says_what_all_are_trained_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "_train", _tells)
    cells = JobPool(1)
    for name in "ab":
        cells.add(cell(tmp_path, name))
    cells.run()
    assert cells.problems == {"a": "True", "b": "False"}


def _tells(config: TrainConfig, name: str, jobs: int, channel: Connection, first: bool) -> None:
    channel.send(str(first))
    sys.exit(2)


def _fails(config: TrainConfig, name: str, jobs: int, channel: Connection, first: bool) -> None:
    channel.send(name)
    sys.exit(2)


@pytest.mark.parametrize("first", [True, False])
def test_the_first_job_describes_its_run_and_others_say_only_what_to_mend(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], mask: None, first: bool
) -> None:
    config = TrainConfig(out=str(tmp_path), epochs=1, batch_size=1000, tensorboard=False, device="cpu")
    jobs._train(config, "learned 0", 1, Pipe()[1], first)
    *before, epoch = capsys.readouterr().out.splitlines()
    assert epoch.startswith("learned 0: epoch 1/1")
    assert "learns in none" in before[-1]
    assert [line.startswith("learned 0: ") for line in before] == ([False, False] if first else [True])
