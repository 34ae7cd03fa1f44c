"""Time, memory and waiting of an epoch."""

import csv
import dataclasses
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from madao.data import InMemoryImages
from madao.training.monitor.profiler import Profiler
from madao.training.splits import Splits
from tests.helpers.training import settings, splits, trained

CPU = torch.device("cpu")


def test_outer_steps_are_timed_and_others_are_not() -> None:
    profiler = Profiler(CPU)
    for _ in range(2):
        time.sleep(0.02)
        with profiler.outer_step():
            time.sleep(0.02)
    found = profiler.read()
    assert found["outer_seconds"] == pytest.approx(0.04, abs=0.015)
    profiler.clear()
    assert profiler.read()["outer_seconds"] == 0


def test_an_epoch_goes_on_from_a_saved_state() -> None:
    profiler = Profiler(CPU, reads=True)
    assert profiler.state_dict() == {"seconds": 0.0, "outer_seconds": 0.0, "waiting_seconds": 0.0}  # the clock stands
    profiler.load_state_dict({"seconds": 100.0, "outer_seconds": 20.0, "waiting_seconds": 3.0})
    assert profiler.rate(640) == 6.4
    profiler.start()
    with profiler.outer_step():
        time.sleep(0.02)
    assert profiler.seconds == pytest.approx(100.02, abs=0.015)
    found = profiler.read()
    assert found["outer_seconds"] == pytest.approx(20.02, abs=0.015)
    assert found["waiting_seconds"] == 3.0
    assert profiler.rate(640) == pytest.approx(6.4, rel=1e-3)
    again = Profiler(CPU)
    again.load_state_dict(profiler.state_dict())
    assert again.seconds == pytest.approx(100.02, abs=0.015)
    profiler.clear()
    assert profiler.seconds == 0.0


def test_images_of_unknown_time_are_left_out_of_the_rate() -> None:
    profiler = Profiler(CPU)
    profiler.skip(640)
    profiler.start()
    time.sleep(0.02)
    assert profiler.rate(704) == pytest.approx(64 / 0.02, rel=0.5)


def test_the_memory_of_the_process_is_known_and_that_of_its_steps_is_not() -> None:
    profiler = Profiler(CPU)
    before = profiler.read()["memory_mib"]
    held = torch.ones(2**26)  # 256 MiB
    after = profiler.read()
    assert before is not None
    assert after["memory_mib"] is not None
    assert 50 < before <= after["memory_mib"] < 200_000
    assert after["outer_memory_mib"] is None
    del held


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_what_outer_steps_hold_on_a_gpu_is_told_apart() -> None:
    torch.cuda.empty_cache()
    before = torch.cuda.memory_reserved() / 2**20
    profiler = Profiler(torch.device("cuda", 0))
    held = torch.ones(2**23, device="cuda")  # 32 MiB
    with profiler.outer_step():
        torch.ones(2**24, device="cuda")  # 64 MiB
    torch.ones(2**23, device="cuda")  # 32 MiB, of what is held already
    profiler.clear()
    with profiler.outer_step():
        pass
    found = profiler.read()
    assert found["memory_mib"] == pytest.approx(before + 32, abs=4)
    assert found["outer_memory_mib"] == pytest.approx(before + 96, abs=4)
    del held


def rows(path: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(path.read_text().splitlines()))


class Slow:
    """Images that take their time, and are not in memory."""

    def __init__(self, images: InMemoryImages, seconds: float) -> None:
        self.images, self.seconds = images, seconds
        self.labels, self.targets, self.shape = images.labels, images.targets, images.shape

    def __len__(self) -> int:
        return len(self.images)

    def load(self, indices: Sequence[int]) -> tuple[Tensor, list[int]]:
        time.sleep(self.seconds)
        return self.images.load(indices)

    def subset(self, indices: Tensor) -> "Slow":
        return Slow(self.images.subset(indices), self.seconds)


def slow(seconds: float, count: int = 96) -> Splits:
    given = splits(count=count)
    assert isinstance(given.train, InMemoryImages)
    return dataclasses.replace(given, train=Slow(given.train, seconds))


def test_waiting_is_measured_and_work_is_not() -> None:
    profiler = Profiler(CPU, reads=True)

    def source() -> Any:
        for number in range(4):
            time.sleep(0.03)
            yield number

    seen = []
    began = time.monotonic()
    for number in profiler.awaited(source()):
        time.sleep(0.02)
        seen.append(number)
    assert seen == [0, 1, 2, 3]
    waiting = profiler.read()["waiting_seconds"]
    assert waiting is not None
    assert 4 * 0.03 <= waiting <= time.monotonic() - began - 4 * 0.02
    profiler.clear()
    assert profiler.read()["waiting_seconds"] == 0


def test_where_nothing_is_read_nothing_is_measured() -> None:
    profiler = Profiler(CPU)
    batches = iter([1, 2])
    assert profiler.awaited(batches) is batches
    assert profiler.read()["waiting_seconds"] is None


class Clock:
    """A GPU that works in the order it is told: each piece begins when it is told and the one before is done."""

    def __init__(self) -> None:
        self.host = self.free = 0.0

    def work(self, seconds: float) -> None:
        self.free = max(self.free, self.host) + seconds

    def event(self, enable_timing: bool) -> Any:
        assert enable_timing
        clock = self

        class Event:
            def record(self, stream: str) -> None:
                assert stream == "queue"
                self.at = max(clock.free, clock.host)

            def query(self) -> bool:
                return self.at <= clock.host

            def synchronize(self) -> None:
                clock.host = max(clock.host, self.at)

            def elapsed_time(self, other: Any) -> float:
                return 1000 * float(other.at - self.at)

        return Event()


@pytest.mark.parametrize(("loading", "waiting"), [(0.5, 0.5), (1.5, 1.5 + 9 * 0.5), (3.0, 3.0 + 9 * 2.0)])
def test_on_a_gpu_only_what_it_stands_still_counts(
    loading: float, waiting: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Steps of one second, queued in no time: loading counts as far as it takes longer than that, and at the start."""
    clock = Clock()
    monkeypatch.setattr(torch.cuda, "Event", clock.event)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: "queue")
    for name in ("reset_peak_memory_stats", "max_memory_reserved"):
        monkeypatch.setattr(torch.cuda, name, lambda device: 0)
    profiler = Profiler(torch.device("cuda"), reads=True)

    def source() -> Any:
        for number in range(10):
            clock.host += loading
            yield number

    count = 0
    for _ in profiler.awaited(source()):
        clock.work(1.0)
        count += 1
        assert len(profiler._open) <= 1 or loading < 1  # events are let go as they pass
    assert count == 10
    assert clock.host == 10 * loading  # it never waited for the GPU
    assert profiler.read()["waiting_seconds"] == pytest.approx(waiting)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize(("loading", "low", "high"), [(0.0, 0.0, 0.15), (1.0, 0.0, 0.3), (3.0, 0.5, 0.8)])
def test_on_a_real_gpu(loading: float, low: float, high: float) -> None:
    matrix = torch.randn(4096, 4096, device="cuda")

    def step() -> None:
        for _ in range(20):
            matrix @ matrix

    step()
    torch.cuda.synchronize()
    began = time.monotonic()
    step()
    torch.cuda.synchronize()
    seconds = time.monotonic() - began
    profiler = Profiler(torch.device("cuda", torch.cuda.current_device()), reads=True)

    def source() -> Any:
        for number in range(20):
            time.sleep(0.7 * loading * seconds)
            yield number

    began = time.monotonic()
    for _ in profiler.awaited(source()):
        step()
    torch.cuda.synchronize()
    waiting = profiler.read()["waiting_seconds"]
    assert waiting is not None
    assert low <= waiting / (time.monotonic() - began) <= high


def test_a_slow_source_is_seen_and_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = settings(tmp_path / "run", "base", epochs=2, batch_size=8)
    began = time.monotonic()
    trained(config, slow(0.1))
    whole = time.monotonic() - began
    for row in rows(tmp_path / "run" / "timing.csv"):
        waited, seconds = float(row["waiting_seconds"]), float(row["seconds"])
        assert 12 * 0.1 <= waited < min(seconds, whole)  # twelve batches
        assert float(row["images_per_second"]) == pytest.approx(96 / seconds, rel=0.02)
        assert float(row["model_images_per_second"]) == pytest.approx(96 / (seconds - waited), rel=0.02)
    said = [line for line in capsys.readouterr().out.splitlines() if "waits for images" in line]
    assert len(said) == 1
    assert "`data.cache_gib=0.2`" in said[0]


def test_a_fast_source_is_not_worth_a_word(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trained(settings(tmp_path / "read", "base", epochs=1), slow(0.0))
    trained(settings(tmp_path / "held", "base", epochs=1))
    assert "waits for images" not in capsys.readouterr().out
    read, held = (rows(tmp_path / name / "timing.csv")[0] for name in ("read", "held"))
    assert float(read["waiting_seconds"]) < 0.5 * float(read["seconds"])  # of an epoch of three steps
    assert (held["waiting_seconds"], held["model_images_per_second"]) == ("", "")


def test_outer_steps_wait_for_images_too(tmp_path: Path) -> None:
    given = slow(0.0)
    assert isinstance(given.validation, InMemoryImages)
    given = dataclasses.replace(given, validation=Slow(given.validation, 0.5))
    trained(settings(tmp_path / "run", epochs=2), given)
    first, second = (float(row["waiting_seconds"]) for row in rows(tmp_path / "run" / "timing.csv"))
    assert first < 0.5 <= second  # outer steps begin in the second epoch
