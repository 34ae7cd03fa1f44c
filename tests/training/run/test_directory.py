"""The run directory: whose it is, and files that do not show an interruption."""

import importlib.metadata
import json
import math
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

import madao
from madao.config.train_config import (
    AugmentConfig,
    DataConfig,
    OptimizerConfig,
    TrainConfig,
    from_dict,
    to_dict,
)
from madao.errors import UserError
from madao.training.run.directory import LOCK, RunDirectory
from madao.training.run.tables import METRICS

CONFIG = TrainConfig(
    epochs=3,
    data=DataConfig(root="/data/é", workers=2),
    augment=AugmentConfig(limits={"Rotate": 10.0}, exclude=["Invert"]),
    optimizer=OptimizerConfig(lr=1e-5, weight_decay=3e-7, schedule="step", milestones=[1, 2.5]),
)


def plain(**changes: Any) -> TrainConfig:
    """CONFIG, resumed, with other values: `data__root` for data.root."""
    content = to_dict(CONFIG) | {"resume": True}
    for name, value in changes.items():
        *parts, last = name.split("__")
        place = content
        for part in parts:
            place = place[part]
        place[last] = value
    return from_dict(content)


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    """A directory that is claimed."""
    directory = RunDirectory(tmp_path / "run")
    claim(directory, CONFIG)
    return directory


def claim(directory: RunDirectory, config: TrainConfig) -> None:
    """Claim it for a moment."""
    try:
        directory.claim(config)
    finally:
        directory.release()


def refusal(directory: RunDirectory, config: TrainConfig) -> str:
    """What `claim` says, in one line, having changed nothing."""
    before = files(directory.path)
    with pytest.raises(UserError) as caught:
        claim(directory, config)
    assert files(directory.path) == before
    text = str(caught.value)
    assert str(directory.path) in text
    assert "\n" not in text
    return text


def files(path: Path) -> dict[str, bytes]:
    if path.is_file():
        return {"": path.read_bytes()}
    return {str(file.relative_to(path)): file.read_bytes() for file in contents(path)}


def contents(path: Path) -> list[Path]:
    return [file for file in sorted(path.rglob("*")) if file.is_file() and file.name != LOCK]


def metrics(epoch: int, step: int, **values: Any) -> dict[str, Any]:
    row: dict[str, Any] = dict.fromkeys(METRICS, 0.5)
    return row | {"epoch": epoch, "step": step, "outer_updates": 7, "outer_skipped": 0} | values


def write_epochs(run: RunDirectory, *epochs: int) -> None:
    """Ten steps an epoch."""
    for epoch in epochs:
        run.append_rows("metrics.csv", [metrics(epoch, 10 * epoch)])
        timing = {"epoch": epoch, "step": 10 * epoch, "seconds": 1.5, "images_per_second": 1e3}
        run.append_rows("timing.csv", [timing])
        run.append_json("trajectory.jsonl", {"epoch": epoch, "step": 10 * epoch, "selection": [0.1 * epoch]})


def steps(run: RunDirectory) -> list[list[int]]:
    """The steps of metrics.csv, timing.csv and trajectory.jsonl."""
    tables = [(run.path / name).read_text().splitlines() for name in ("metrics.csv", "timing.csv")]
    found = [[int(line.split(",")[1]) for line in table[1:]] for table in tables]
    lines = (run.path / "trajectory.jsonl").read_text().splitlines()
    return [*found, [json.loads(line)["step"] for line in lines]]


@pytest.mark.parametrize("there", ["no", "empty", "deep"])
@pytest.mark.parametrize("resume", [False, True])
def test_a_new_or_empty_directory_is_claimed(tmp_path: Path, there: str, resume: bool) -> None:
    path = tmp_path / "a" / "b" / "run" if there == "deep" else tmp_path / "run"
    if there == "empty":
        path.mkdir()
    directory = RunDirectory(path)
    assert directory.saved_config() is None
    config = plain() if resume else CONFIG
    directory.check(config)
    assert path.exists() == (there == "empty")
    claim(directory, config)
    assert set(files(path)) == {"config.yaml"}
    found = directory.saved_config()
    assert found == to_dict(config)
    assert from_dict(found) == config


def test_the_settings_are_written_in_their_order_as_they_are_read(run: RunDirectory) -> None:
    text = (run.path / "config.yaml").read_text(encoding="utf-8")
    assert "/data/é" in text
    assert list(yaml.safe_load(text)) == list(to_dict(CONFIG))


@pytest.mark.parametrize("config", [CONFIG, plain()])
def test_other_files_and_folders_are_refused(tmp_path: Path, config: TrainConfig) -> None:
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "thesis.tex").write_text("years of work")
    (tmp_path / "file").write_text("not a directory")
    for name in ("thesis", "file"):
        assert "is no run directory" in refusal(RunDirectory(tmp_path / name), config)


def test_a_run_is_not_overwritten_without_resume(run: RunDirectory) -> None:
    write_epochs(run, 1)
    for config in (CONFIG, TrainConfig()):
        assert "already holds a run; continue it by `resume`" in refusal(run, config)


def test_a_run_is_resumed_with_the_same_settings(run: RunDirectory) -> None:
    write_epochs(run, 1)
    before = files(run.path)
    claim(run, plain())
    assert files(run.path) == before


@pytest.mark.parametrize(
    ("key", "before", "now"),
    [
        ("epochs", 3, 4),
        ("seed", 0, 1),
        ("precision", "auto", "bf16"),
        ("data.name", None, "digits"),
        ("data.val_fraction", 0.1, 0.2),
        ("optimizer.lr", 1e-5, 2e-5),
        ("optimizer.milestones", [1, 2.5], [1, 2]),
        ("augment.exclude", ["Invert"], []),
        ("augment.limits.Rotate", 10.0, 20.0),
        ("outer.warmup", None, 0.0),
    ],
)
def test_a_run_is_not_resumed_with_other_settings(run: RunDirectory, key: str, before: Any, now: Any) -> None:
    text = refusal(run, plain(**{key.replace(".", "__"): now}))
    assert f"was started with {key} = {before!r}, not {now!r}; resume it without `{key}`" in text


def test_an_operation_that_was_not_limited_is_another_setting(run: RunDirectory) -> None:
    text = refusal(run, plain(augment__limits={"Rotate": 10.0, "ShearX": 0.1}))
    assert "augment.limits.ShearX = None, not 0.1" in text


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("out", "elsewhere"),
        ("device", "cuda:1"),
        ("logger", "none"),
        ("checkpoint_minutes", 0.5),
        ("checkpoint_every", 5),
        ("data.root", "/mnt/data"),
        ("data.workers", 0),
        ("data.cache_gib", 1.0),
    ],
)
def test_where_and_how_it_runs_may_change(run: RunDirectory, key: str, value: Any) -> None:
    before = files(run.path)
    claim(run, plain(**{key.replace(".", "__"): value}))
    assert files(run.path) == before
    # And nothing else with it.
    assert "epochs = 3" in refusal(run, plain(**{key.replace(".", "__"): value, "epochs": 4}))


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"epochs",
        b"- 1\n- 2\n",
        b"data: {name: dig",
        b"epochs: 3\n  - x: [",
        b"\xff\xfe\x00\x80",
        b"epochs: 3\0\0\0",
    ],
)
def test_damaged_settings_are_reported_in_one_line(run: RunDirectory, content: bytes) -> None:
    (run.path / "config.yaml").write_bytes(content)
    for config in (CONFIG, plain()):
        assert "config.yaml is damaged" in refusal(run, config)


def test_a_claim_that_was_killed_can_be_repeated(tmp_path: Path) -> None:
    (tmp_path / "config.yaml.part").write_text("half of the se")
    (tmp_path / LOCK).touch()
    claim(RunDirectory(tmp_path), CONFIG)
    assert set(files(tmp_path)) == {"config.yaml"}


def test_two_processes_do_not_share_a_directory(run: RunDirectory) -> None:
    run.claim(plain())
    with pytest.raises(UserError, match="another process"):
        RunDirectory(run.path).claim(plain())
    run.release()
    claim(RunDirectory(run.path), plain())


def test_json_is_written_to_be_read(tmp_path: Path) -> None:
    content = {"classes": ["é", "b"], "mean": [0.1, 1 / 3], "validation": None}
    RunDirectory(tmp_path).write_json("split.json", content)
    text = (tmp_path / "split.json").read_text(encoding="utf-8")
    assert json.loads(text) == content
    assert "é" in text
    assert text.endswith("}\n")


def test_rows_have_one_header_and_empty_cells_for_none(run: RunDirectory) -> None:
    run.append_rows("metrics.csv", [metrics(1, 10, validation_loss=None, validation_error=None)])
    run.append_rows("metrics.csv", [metrics(2, 20)])
    lines = (run.path / "metrics.csv").read_text().splitlines()
    assert lines == [",".join(METRICS), "1,10,0.5,0.5,0.5,,,7,0", "2,20,0.5,0.5,0.5,0.5,0.5,7,0"]
    assert [row["validation_loss"] for row in run.read_metrics()] == ["", "0.5"]


def test_floats_read_back_as_the_same_number(run: RunDirectory) -> None:
    values = [1 / 3, 0.1 + 0.2, 5e-324, 1.7976931348623157e308, 1e-7, math.pi, 0.0, 1e22, math.inf]
    for number, value in enumerate(values):
        run.append_rows("metrics.csv", [metrics(number, number, train_loss=value)])
    run.rewind(1000)
    assert [float(row["train_loss"]) for row in run.read_metrics()] == values


@pytest.mark.parametrize(
    ("epoch", "kept"), [(-1, []), (0, []), (1, [10]), (2, [10, 20]), (3, [10, 20, 30]), (9, [10, 20, 30])]
)
def test_rows_after_an_epoch_are_forgotten(run: RunDirectory, epoch: int, kept: list[int]) -> None:
    write_epochs(run, 1, 2, 3)
    run.rewind(epoch)
    assert steps(run) == [kept] * 3


def test_after_a_rewind_the_files_are_those_of_a_run_that_went_through(run: RunDirectory, tmp_path: Path) -> None:
    through = RunDirectory(tmp_path / "through")
    claim(through, CONFIG)
    write_epochs(through, 1, 2, 3, 4)
    write_epochs(run, 1, 2, 3)
    run.rewind(2)
    write_epochs(run, 3, 4)
    assert files(run.path) == files(through.path)


@pytest.mark.parametrize("name", ["metrics.csv", "timing.csv", "trajectory.jsonl"])
@pytest.mark.parametrize("epoch", [2, 3])
def test_a_line_cut_short_by_a_crash_is_forgotten(run: RunDirectory, name: str, epoch: int) -> None:
    """Wherever it was cut."""
    write_epochs(run, 1, 2)
    two, before = files(run.path), (run.path / name).read_bytes()
    write_epochs(run, 3)
    whole = (run.path / name).read_bytes()
    assert len(whole) > len(before) + 10
    for length in range(len(before), len(whole)):
        (run.path / name).write_bytes(whole[:length])
        run.rewind(epoch)
        assert (run.path / name).read_bytes() == before
    run.rewind(2)
    assert files(run.path) == two


@pytest.mark.parametrize("length", [0, 1, 5, 9])
def test_a_header_cut_short_is_written_again(run: RunDirectory, length: int) -> None:
    (run.path / "metrics.csv").write_text(",".join(METRICS)[:length])
    run.rewind(0)
    run.append_rows("metrics.csv", [metrics(1, 10)])
    assert [row["step"] for row in run.read_metrics()] == ["10"]


def test_lines_of_rubbish_and_what_follows_are_forgotten(run: RunDirectory) -> None:
    write_epochs(run, 1)
    before = files(run.path)
    for name in ("metrics.csv", "timing.csv", "trajectory.jsonl"):
        with (run.path / name).open("a") as file:
            file.write("\0\0\0\0\n")
    write_epochs(run, 2)
    run.rewind(99)
    assert files(run.path) == before


def test_where_nothing_was_written_there_is_nothing_to_forget(run: RunDirectory) -> None:
    before = files(run.path)
    run.rewind(0)
    assert files(run.path) == before


def test_the_first_line_of_a_trajectory_stays(run: RunDirectory) -> None:
    run.append_json("trajectory.jsonl", {"epoch": 0, "step": 0, "operations": ["Rotate"]})
    write_epochs(run, 1, 2)
    run.rewind(1)
    assert steps(run)[2] == [0, 10]
    run.rewind(-1)
    assert steps(run)[2] == []


def test_a_table_of_an_older_version_gets_the_columns_of_this_one(run: RunDirectory) -> None:
    (run.path / "timing.csv").write_text("epoch,step,seconds,images_per_second\n1,10,1.5,1000.0\n")
    run.rewind(1)
    run.append_rows("timing.csv", [{"epoch": 2, "step": 20, "seconds": 1.0, "outer_seconds": 0.25}])
    lines = (run.path / "timing.csv").read_text().splitlines()
    assert lines[1:] == ["1,10,1.5,1000.0,,,,,", "2,20,1.0,,0.25,,,,"]


def test_the_environment_has_the_commit_of_the_sources(tmp_path: Path) -> None:
    RunDirectory(tmp_path).write_environment(torch.device("cpu"), "resnet18")
    found = json.loads((tmp_path / "environment.json").read_text())
    assert (found["device"], found["model"], found["torch"]) == ("cpu", "resnet18", torch.__version__)
    root = Path(madao.__file__).parents[2]
    if (root / ".git").exists():
        head = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=True, cwd=root)
        assert head.stdout.startswith(found["commit"].removesuffix("-dirty").split("-g")[-1])


def test_madao_runs_from_its_sources_without_being_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", absent)
    RunDirectory(tmp_path).write_environment(torch.device("cpu"))
    assert json.loads((tmp_path / "environment.json").read_text())["madao"] is None
