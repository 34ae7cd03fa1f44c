"""Waiting for images: how long, and what is said about it."""

import csv
import dataclasses
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from madao.config.train_config import DataConfig
from madao.data import GpuDecodedImages, InMemoryImages
from madao.data.image_files import ImageFiles
from madao.training import splits as splits_module
from madao.training.monitor.profiler import Profiler
from madao.training.monitor.waiting import loader_advice, timing_row
from madao.training.splits import Splits, on_device
from madao.training.trainer import Trainer
from tests.helpers.run_directories import write_run
from tests.training.test_trainer import settings, splits

CPU = torch.device("cpu")


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
    meter = Profiler(CPU, reads=True)

    def source() -> Any:
        for number in range(4):
            time.sleep(0.03)
            yield number

    seen = []
    began = time.monotonic()
    for number in meter.awaited(source()):
        time.sleep(0.02)
        seen.append(number)
    assert seen == [0, 1, 2, 3]
    waiting = meter.read()["waiting_seconds"]
    assert waiting is not None
    assert 4 * 0.03 <= waiting <= time.monotonic() - began - 4 * 0.02
    meter.clear()
    assert meter.read()["waiting_seconds"] == 0


def test_where_nothing_is_read_nothing_is_measured() -> None:
    meter = Profiler(CPU)
    batches = iter([1, 2])
    assert meter.awaited(batches) is batches
    assert meter.read()["waiting_seconds"] is None


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
    meter = Profiler(torch.device("cuda"), reads=True)

    def source() -> Any:
        for number in range(10):
            clock.host += loading
            yield number

    count = 0
    for _ in meter.awaited(source()):
        clock.work(1.0)
        count += 1
        assert len(meter._open) <= 1 or loading < 1  # events are let go as they pass
    assert count == 10
    assert clock.host == 10 * loading  # it never waited for the GPU
    assert meter.read()["waiting_seconds"] == pytest.approx(waiting)


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
    meter = Profiler(torch.device("cuda", torch.cuda.current_device()), reads=True)

    def source() -> Any:
        for number in range(20):
            time.sleep(0.7 * loading * seconds)
            yield number

    began = time.monotonic()
    for _ in meter.awaited(source()):
        step()
    torch.cuda.synchronize()
    waiting = meter.read()["waiting_seconds"]
    assert waiting is not None
    assert low <= waiting / (time.monotonic() - began) <= high


def test_a_slow_source_is_seen_and_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = settings(tmp_path / "run", "base", epochs=2, batch_size=8)
    began = time.monotonic()
    Trainer(config, slow(0.1)).fit()
    whole = time.monotonic() - began
    for row in rows(tmp_path / "run" / "timing.csv"):
        waited, seconds = float(row["waiting_seconds"]), float(row["seconds"])
        assert 12 * 0.1 <= waited < min(seconds, whole)  # twelve batches
        assert float(row["images_per_second"]) == pytest.approx(96 / seconds, rel=0.02)
        assert float(row["model_images_per_second"]) == pytest.approx(96 / (seconds - waited), rel=0.02)
    said = [line for line in capsys.readouterr().out.splitlines() if "waits for images" in line]
    assert len(said) == 1
    assert "of the time (" in said[0]
    assert "--data.cache_gib 0.2 to keep them decoded" in said[0]


def test_a_fast_source_is_not_worth_a_word(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Trainer(settings(tmp_path / "read", "base", epochs=1), slow(0.0)).fit()
    Trainer(settings(tmp_path / "held", "base", epochs=1), splits()).fit()
    assert "waits for images" not in capsys.readouterr().out
    read, held = (rows(tmp_path / name / "timing.csv")[0] for name in ("read", "held"))
    assert float(read["waiting_seconds"]) < 0.5 * float(read["seconds"])  # of an epoch of three steps
    assert (held["waiting_seconds"], held["model_images_per_second"]) == ("", "")


def test_outer_steps_wait_for_images_too(tmp_path: Path) -> None:
    given = slow(0.0)
    assert isinstance(given.validation, InMemoryImages)
    given = dataclasses.replace(given, validation=Slow(given.validation, 0.5))
    Trainer(settings(tmp_path / "run", epochs=2), given).fit()
    first, second = (float(row["waiting_seconds"]) for row in rows(tmp_path / "run" / "timing.csv"))
    assert first < 0.5 <= second  # outer steps begin in the second epoch


def test_the_advice(monkeypatch: pytest.MonkeyPatch) -> None:
    given = splits(channels=3, side=16)
    timing = timing_row(10.0, 1210.0, {"waiting_seconds": 4.3})
    assert timing["model_images_per_second"] == pytest.approx(1210 / 0.57)
    monkeypatch.setattr("os.cpu_count", lambda: 8)
    assert loader_advice(timing, DataConfig(workers=4), given) == (
        "the model waits for images 43 % of the time (1,210 images/s of 2,123 it could take); what helps: more "
        "--data.workers than 4, or a smaller --data.size, or --data.cache_gib 0.2 to keep them decoded"
    )
    everyone = loader_advice(timing, DataConfig(workers=8), given)
    assert everyone is not None
    assert "workers" not in everyone
    on_gpu = [
        str(loader_advice(timing, DataConfig(decode=decode), given, on_gpu=True)) for decode in ("workers", "gpu")
    ]
    assert ["what helps: --data.decode gpu, or" in line for line in on_gpu] == [True, False]
    for waiting in (None, 0.9, 0.0):
        assert loader_advice(timing_row(10.0, 1210.0, {"waiting_seconds": waiting}), DataConfig(), given) is None
    assert (
        loader_advice(timing_row(3.0, 100.0, {"waiting_seconds": 0.9}), DataConfig(), given) is None
    )  # workers have to start
    assert timing_row(1.0, 5.0, {"waiting_seconds": 1.0})["model_images_per_second"] is None


def test_the_report_says_so(tmp_path: Path) -> None:
    from madao.report import read_run
    from madao.report.page import _cost
    from madao.report.run_charts import cost_charts

    write_run(tmp_path / "fast")
    fast = read_run(tmp_path / "fast")
    assert "waited" not in _cost(fast)
    epochs = len(fast.timing["seconds"])
    waits: dict[str, list[float | None]] = {
        "waiting_seconds": [1.5] * epochs,
        "model_images_per_second": [600.0] * epochs,
    }
    starving = dataclasses.replace(fast, timing={**fast.timing, **waits})
    assert "The model waited for images 50&nbsp;% of the time: in the last epoch it got 300 of the 600 images/s" in _cost(
        starving
    )
    names = [series.name for series in cost_charts(starving)[0].panels[0].series]
    assert names[-1] == "waiting for images"
    assert "waiting for images" not in [series.name for series in cost_charts(fast)[0].panels[0].series]


def test_who_decodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = ImageFiles([tmp_path / "a.jpg"], torch.tensor([0]), 8)
    given = dataclasses.replace(splits(), train=files, skipped=2)
    skipped = "skipped 2 images that could not be read"
    moved, notes = on_device(given, DataConfig(), CPU)
    assert (moved.train, notes) == (files, [skipped])
    moved, notes = on_device(given, DataConfig(decode="gpu"), CPU)
    assert moved.train is files
    assert notes == [skipped, "--data.decode gpu: the device is cpu, so worker processes decode the images"]
    monkeypatch.setattr(splits_module, "why_not_on", lambda device: None)
    moved, notes = on_device(given, DataConfig(decode="gpu"), CPU)
    assert isinstance(moved.train, GpuDecodedImages)
    assert isinstance(moved.validation, InMemoryImages)
    assert notes == [skipped]
    assert on_device(given, DataConfig(decode="workers"), CPU)[0].train is files
    assert on_device(splits(), DataConfig(decode="gpu"), CPU)[1] == []
