"""Loggers: each writes the same numbers, with the real package and offline, and no run depends on one."""

import dataclasses
import logging
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from madao.errors import UserError
from madao.training.monitor.loggers.registry import LOGGERS, check_logger
from madao.training.monitor.loggers.run_logger import RunLogger
from madao.training.trainer import Trainer
from tests.helpers.training import built, settings, trained
from tests.helpers.wandb_files import records

Written = dict[str, dict[int, float]]
"""The numbers of a run by name and step."""


def read_tensorboard(run: Path) -> Written:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(run / "tensorboard"))
    events.Reload()
    return {name: {each.step: each.value for each in events.Scalars(name)} for name in events.Tags()["scalars"]}


def read_wandb(run: Path) -> Written:
    from wandb.proto.wandb_internal_pb2 import Record  # type: ignore[attr-defined]

    found: Written = {}
    (file,) = (run / "wandb").rglob("*.wandb")
    record, end = Record(), time.monotonic() + 60
    while record.WhichOneof("record_type") != "exit" and time.monotonic() < end:  # a process writes the file
        time.sleep(0.05)
        for data in records(file):
            record.ParseFromString(data)
            items = {item.key or "/".join(item.nested_key): item.value_json for item in record.history.item}
            for name, value in items.items():
                if not name.startswith("_"):
                    found.setdefault(name, {})[int(items["_step"])] = float(value)
    return found


def read_mlflow(run: Path) -> Written:
    from mlflow.tracking import MlflowClient

    client, name = MlflowClient(), (run / "mlflow" / "id").read_text()
    assert client.get_run(name).info.status == "FINISHED"
    assert client.get_run(name).data.params["outer.every"] == "2"
    keys = client.get_run(name).data.metrics
    return {key: {each.step: each.value for each in client.get_metric_history(name, key)} for key in keys}


READERS: dict[str, Callable[[Path], Written]] = {
    "tensorboard": read_tensorboard,
    "wandb": read_wandb,
    "mlflow": read_mlflow,
}


@pytest.fixture(autouse=True)
def offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", (tmp_path / "mlruns").as_uri())


def test_every_logger_is_tested() -> None:
    assert READERS.keys() == LOGGERS.keys()


@pytest.mark.parametrize("name", LOGGERS)
def test_a_service_has_the_numbers_of_each_epoch(name: str, tmp_path: Path) -> None:
    out = tmp_path / "run"
    config = settings(out, logger=name)
    run = built(dataclasses.replace(config, epochs=3))
    trainer = Trainer(run)
    trainer.fit()
    written = READERS[name](out)
    rows = run.directory.read_metrics()
    for column in ("train_loss", "validation_error"):
        assert written[column] == pytest.approx({int(row["step"]): float(row[column]) for row in rows}, rel=1e-5)
    assert {"selection/Rotate", "hypergradient/q_norm", "images_per_second"} <= written.keys()
    assert [*written["selection/Rotate"]] == [3, 6, 9]


def test_a_logger_does_not_change_a_run(tmp_path: Path) -> None:
    rows = [
        trained(settings(tmp_path / name, logger=name)).directory.read_metrics() for name in ("none", "wandb", "mlflow")
    ]
    assert rows[0] == rows[1] == rows[2]
    assert not (tmp_path / "none" / "tensorboard").exists()


class Fails:
    """A service that has gone away."""

    def __init__(self, folder: Path, step: int, settings: Mapping[str, Any]) -> None:
        self.tried = 0

    def write(self, step: int, scalars: Mapping[str, float]) -> None:
        raise ConnectionError("no route\nto the host")

    def close(self, complete: bool) -> None:
        raise ConnectionError("no route")


def test_a_service_that_fails_is_told_once_and_the_run_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("madao.training.monitor.loggers.mlflow.MlflowLogger", Fails)
    with caplog.at_level(logging.WARNING, "madao"):
        run = trained(settings(tmp_path / "run", logger="mlflow"))
    assert run.epoch == 3
    (record,) = [record for record in caplog.records if record.name == "madao"]
    assert "mlflow failed at step 3 (no route)" in record.getMessage()


def test_a_resumed_run_continues_its_record(tmp_path: Path) -> None:
    for step in (0, 3):
        logger = RunLogger("mlflow")
        logger.open(tmp_path / "run", step, settings(tmp_path / "run"))
        logger.write(step + 3, {"train_loss": 0.5 + step}, None, None)
        logger.close(complete=True)
    assert read_mlflow(tmp_path / "run") == {"train_loss": {3: 0.5, 6: 3.5}}


def test_a_service_that_cannot_begin_is_an_error_before_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "carrier-pigeon://loft")
    with pytest.raises(UserError, match=r"`logger=mlflow` cannot begin: .*`logger=none`"):
        trained(settings(tmp_path / "run", logger="mlflow"))


def test_a_package_that_is_missing_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    check_logger("none")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"pip install 'madao\[wandb\]'"):
        check_logger("wandb")
