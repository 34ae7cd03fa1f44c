"""The queue of the paper's cells: what starts next, what fits, what is collected and published."""

import json
import math
import re
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from PIL import Image

from madao.experiments.table import run_path
from tests.helpers.run_directories import write_run
from tests.helpers.scripts import ROOT, module

PAPER = ROOT / "benchmarks" / "paper"


@pytest.fixture(name="logic")
def _logic(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(PAPER))
    sys.modules.pop("cell_queue", None)
    import cell_queue

    return cell_queue


@pytest.fixture(name="runner")
def _runner(logic: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    return module(PAPER / "run_queue.py", monkeypatch)


def cell(logic: Any, method: str, seed: int = 0, seconds: float = 100, **others: Any) -> Any:
    return logic.QueuedCell("cifar10-wrn-28-2", method, seed, seconds, **{"start": 10, "memory": 700, **others})


def twice(jobs: int) -> float:
    """No slow-down with one or two jobs, then in proportion to their number."""
    return max(1.0, jobs / 2)


def test_jobs_that_share_a_gpu_end_as_their_work_allows(logic: Any) -> None:
    assert logic.finish_times([], twice) == []
    assert logic.finish_times([(0, 100)], twice) == [100]
    # Alone until 30; together without a loss until the first has ended.
    assert logic.finish_times([(0, 100), (30, 100)], twice) == [100, 130]
    # Four halve each other's pace. The first three end at 200; the fourth has trained 100 seconds of 150 then.
    assert logic.finish_times([(0, 100), (0, 100), (0, 100), (0, 150)], twice) == pytest.approx([200, 200, 200, 250])
    # Three train 40 seconds' worth until 60, another 40 beside the fourth until 140, and the last 20 until 170.
    ends = logic.finish_times([(0, 100), (0, 100), (0, 100), (60, 40)], twice)
    assert ends == pytest.approx([170, 170, 170, 140])


@pytest.mark.parametrize("seed", range(5))
def test_finish_times_are_those_of_a_slow_simulation(logic: Any, seed: int) -> None:
    draw = np.random.default_rng(seed)
    jobs = [(float(draw.uniform(0, 20)), float(draw.uniform(0, 30))) for _ in range(6)]
    left, ends, tick = [work for _, work in jobs], [math.nan] * 6, 0.002
    for step in range(200_000):
        active = [i for i in range(6) if jobs[i][0] <= step * tick and left[i] > 0]
        for i in active:
            left[i] -= tick / twice(len(active))
            if left[i] <= 0:
                ends[i] = (step + 1) * tick
        if not any(amount > 0 for amount in left):
            break
    assert logic.finish_times(jobs, twice) == pytest.approx(ends, abs=0.1)


def test_a_job_fits_if_it_ends_in_time_and_makes_no_other_late(logic: Any) -> None:
    assert logic.fits((10, 100), [], 110, twice)
    assert not logic.fits((10, 100), [], 109, twice)
    running = [(0.0, 100.0), (0.0, 100.0)]  # ends at 100 without the third, later with it
    assert logic.fits((0, 20), running, 120, twice)
    assert not logic.fits((0, 20), running, 105, twice)
    assert logic.fits((0, 20), [(0.0, 500.0), (0.0, 500.0)], 105, twice)  # late they are in any case


def test_the_first_cell_that_fits_is_next(logic: Any) -> None:
    long, short, other = (cell(logic, name, seconds=s) for name, s in (("a", 300), ("b", 50), ("c", 50)))
    waiting = [(each, (10.0, float(each.seconds)), code) for each, code in ((long, "x"), (short, "y"), (other, "z"))]
    choose = logic.next_cell
    assert choose(waiting, [], set(), 1000, 9000, twice) is long
    assert choose(waiting, [], set(), 200, 9000, twice) is short
    assert choose(waiting, [], {"x", "y"}, 1000, 9000, twice) is other  # the others wait for what is being compiled
    assert choose(waiting, [], set(), 1000, 699, twice) is None
    assert choose(waiting, [], set(), 30, 9000, twice) is None
    assert choose([], [], set(), 1000, 9000, twice) is None


def test_what_is_left_of_a_cell_is_its_start_and_its_epochs(logic: Any) -> None:
    waits = cell(logic, "base", seconds=200, start=30)
    assert logic.job(waits, 200, 0, 0) == (30, 200)
    assert logic.job(waits, 200, 50, 0) == (30, 150)  # interrupted, and to be resumed
    assert logic.job(waits, 200, 0, 12) == (18, 200)
    assert logic.job(waits, 200, 0, 50) == (0, 200)
    assert logic.job(waits, 200, 199) == (0, 1)


def test_the_slow_down_is_what_was_measured(logic: Any) -> None:
    slow = logic.SlowDown(0.6)
    assert [slow(jobs) for jobs in (1, 2, 5)] == pytest.approx([1, 1.2, 3])
    slow.measure([])
    assert slow(5) == pytest.approx(3)
    slow.measure([1.8, 2.0, 2.2, 9.0])
    assert slow(4) == pytest.approx(2.1)
    marks = [(0.0, 0), (30.0, 1), (33.0, 2), (36.0, 3)]  # the first epoch compiled
    assert logic.epoch_seconds(marks, 10) == 3
    assert logic.epoch_seconds(marks, 100) == 12
    assert logic.epoch_seconds(marks[:1], 10) is None
    assert logic.epoch_seconds([], 10) is None


def test_the_queue_has_cells_that_the_tables_need_in_order(logic: Any, runner: Any, tmp_path: Path) -> None:
    queue = logic.read_queue(PAPER / "queue.yaml")
    trainings = runner.prepare(queue, tmp_path, "data")
    assert [training.cell for training in trainings] == [*queue.cells]
    names = [(each.recipe, each.method, each.seed) for each in queue.cells]
    assert names[:6] == [("cifar10-wrn-28-2", name, seed) for seed in (3, 4, 5) for name in ("base", "uniform")]
    seeds = [seed for recipe, _, seed in names if recipe == "cifar100-wrn-28-2"]
    assert seeds == sorted(seeds)  # one seed of everything before the second of anything
    assert {*queue.needs} == {recipe for recipe, _, _ in names}
    entries = {entry.name: entry for entry in module(PAPER / "table1.py", pytest.MonkeyPatch()).ENTRIES}
    for training in trainings:
        assert training.cell.method in entries[training.cell.recipe].methods
        assert training.path == run_path(tmp_path / training.cell.recipe, training.cell.method, training.cell.seed)
        assert (training.config.epochs, training.config.resume, training.config.seed) == (200, True, training.cell.seed)
        assert training.config.data.name == training.cell.recipe.split("-")[0]
    by_method = {training.cell.method: training for training in trainings}
    assert by_method["same-loss"].config.outer.baseline == "same-loss"
    assert by_method["randaugment-mild"].config.augment.magnitude == 0.06
    assert len({training.code for training in trainings}) == 4  # fixed policies by data set, and two that learn


def test_a_queue_names_no_cell_twice(logic: Any, tmp_path: Path) -> None:
    line = {"recipe": "cifar10-wrn-28-2", "method": "uniform", "seed": 0, "seconds": 1, "start": 1, "memory": 1}
    path = tmp_path / "queue.yaml"
    path.write_text(yaml.safe_dump({"settings": {}, "sharing": {}, "cells": [line, {**line, "seed": 1}, line]}))
    with pytest.raises(SystemExit, match="uniform 0"):
        logic.read_queue(path)


TINY = {"logger": "none", "data.name": "digits", "model.name": "small-cnn"}


def _queue(path: Path, epochs: int, seconds: float, cells: list[tuple[str, int]], **others: Any) -> Path:
    lines = [
        {"recipe": "cifar10-wrn-28-2", "method": method, "seed": seed, "seconds": seconds, "start": 1, "memory": 1}
        for method, seed in cells
    ]
    settings = {**TINY, "epochs": epochs, **others}
    sharing = {"with_mps": 1.0, "without_mps": 1.0}
    path.write_text(yaml.safe_dump({"settings": settings, "sharing": sharing, "cells": lines}))
    return path


def _run(queue: Path, out: Path, minutes: float) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(PAPER / "run_queue.py"), "--queue", str(queue), "--out", str(out), "--jobs", "2"]
    return subprocess.run([*command, "--minutes", str(minutes)], capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_a_call_ends_in_time_and_the_next_one_goes_on(tmp_path: Path) -> None:
    out = tmp_path / "runs"
    never = dict.fromkeys(("evaluate_every", "checkpoint_every"), 100_000)  # only cells that are told to stop write any
    endless = _queue(tmp_path / "queue.yaml", 100_000, 1, [("base", 0)], **never)
    reached = [0]
    for minutes in (0.5, 0.3):  # without its checkpoint the second call would get less far than the first
        ended = _run(endless, out, minutes)
        assert ended.returncode == 0, ended.stderr
        found = re.search(r"base 0: stopped at epoch (\d+)", ended.stdout)
        assert found is not None, ended.stdout
        assert (f"started, from epoch {reached[-1]}" in ended.stdout) == (reached[-1] > 0)
        reached.append(int(found[1]))
    assert reached == sorted({*reached})
    progress = json.loads((out / "progress.json").read_text())
    assert progress["running"] == progress["finished"] == progress["failed"] == {}
    assert progress["waiting"] == ["cifar10-wrn-28-2 base 0"]


def test_finished_cells_are_collected_skipped_and_published(tmp_path: Path, runner: Any) -> None:
    out = tmp_path / "runs"
    queue = _queue(tmp_path / "queue.yaml", 1, 1, [("base", 0), ("uniform", 0)])
    ended = _run(queue, out, 1.5)
    assert "2 of 2 cells are finished" in ended.stdout, ended.stdout + ended.stderr
    with tarfile.open(out / "cells.tar.gz") as archive:
        names = archive.getnames()
        archive.extractall(tmp_path / "unpacked", filter="data")
    assert "cifar10-wrn-28-2/base/0/result.json" in names
    assert not [name for name in names if name.endswith(".pt")]
    assert "started" not in _run(queue, out, 0.2).stdout.replace("MPS: started", "")
    results = tmp_path / "results"
    results.mkdir()
    (line,) = runner.publish(tmp_path / "unpacked", results, {"command": "again", "jobs": 2})
    assert line.endswith("base 0, uniform 0")
    published = json.loads((results / "paper-cifar10-wrn-28-2.json").read_text())
    assert {*published["cells"]} == {"base 0", "uniform 0"}
    before = published["cells"]["uniform 0"]["test_error"]
    write_run(run_path(tmp_path / "more" / "cifar10-wrn-28-2", "uniform", 1), "uniform", 1, epochs=1, error=0.5)
    runner.publish(tmp_path / "more", results, {"command": "again", "jobs": 2})
    published = json.loads((results / "paper-cifar10-wrn-28-2.json").read_text())
    assert {*published["cells"]} == {"base 0", "uniform 0", "uniform 1"}
    assert published["cells"]["uniform 0"]["test_error"] == before


def test_cells_that_all_fail_end_the_call(tmp_path: Path) -> None:
    queue = _queue(tmp_path / "queue.yaml", 1, 1, [("base", seed) for seed in range(9)], **{"data.name": "cifar10"})
    ended = _run(queue, tmp_path / "runs", 1.5)
    progress = json.loads((tmp_path / "runs" / "progress.json").read_text())
    assert ended.returncode == 1
    assert 0 < len(progress["failed"]) <= 3
    assert "found no complete cifar10" in next(iter(progress["failed"].values()))


def test_cifar100_trees_become_files_that_torchvision_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from torchvision.datasets import CIFAR100

    for name in ("train_list", "test_list", "meta"):  # what is changed below is put back
        monkeypatch.setattr(CIFAR100, name, getattr(CIFAR100, name))
    draw = np.random.default_rng(0)
    images: dict[str, dict[bytes, int]] = {"train": {}, "test": {}}
    for split, found in images.items():
        for label, name in enumerate(["apple", "bear", "cup"]):
            folder = tmp_path / "tree" / split / name
            folder.mkdir(parents=True)
            for number in range(5):
                pixels = draw.integers(0, 256, (32, 32, 3), np.uint8)
                Image.fromarray(pixels).save(folder / f"{name}_{number}.png")
                found[pixels.tobytes()] = label
    convert = module(PAPER / "convert.py", monkeypatch)
    lines = convert.cifar100(tmp_path / "tree", tmp_path)
    assert [line.split(", ")[0] for line in lines[:3]] == ["train: 15 images", "test: 15 images", "meta: 3 classes"]
    assert all("not the original's" in line for line in lines[:3])
    with pytest.raises(RuntimeError, match="corrupted"):
        CIFAR100(str(tmp_path))
    assert convert.accept_converted(tmp_path) == ["CIFAR100"]
    for split, found in images.items():
        read = CIFAR100(str(tmp_path), train=split == "train")
        assert read.classes == ["apple", "bear", "cup"]
        assert {image.tobytes(): label for image, label in zip(read.data, read.targets, strict=True)} == found
        assert read.targets != sorted(read.targets)
    (tmp_path / "cifar-100-python" / "test").write_bytes(b"cut short")
    with pytest.raises(RuntimeError, match="corrupted"):
        CIFAR100(str(tmp_path))
    Image.new("L", (32, 32)).save(tmp_path / "tree" / "train" / "cup" / "grey.png")
    with pytest.raises(SystemExit, match="uint8"):
        convert.cifar100(tmp_path / "tree", tmp_path)
    assert convert.accept_converted(tmp_path / "tree") == []
