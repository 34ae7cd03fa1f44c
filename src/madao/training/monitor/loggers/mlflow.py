"""Scalars for MLflow."""

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mlflow.entities import Metric, Param
from mlflow.tracking import MlflowClient

from madao.training.monitor.loggers.identity import remember

_PARAMS_PER_CALL = 100
"""The most that a server takes."""


class MlflowLogger:
    """A logger that writes to MLflow. Its environment variables apply, such as `MLFLOW_TRACKING_URI`.

    Args:
        folder: The folder of the identity of the run.
        step: The step at which the run starts or resumes.
        settings: The settings of the run.
    """

    def __init__(self, folder: Path, step: int, settings: Mapping[str, Any]) -> None:
        # By default MLflow tries for minutes to reach a server, and training would wait.
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "10")
        folder.mkdir(parents=True, exist_ok=True)
        self._client = MlflowClient()
        self._run = remember(folder / "id", lambda: self._create(folder.parent.name, settings))
        self._client.update_run(self._run, status="RUNNING")

    def write(self, step: int, scalars: Mapping[str, float]) -> None:
        """Write numbers by name."""
        now = round(1000 * time.time())
        self._client.log_batch(self._run, metrics=[Metric(name, value, now, step) for name, value in scalars.items()])

    def close(self, complete: bool) -> None:
        """End the record of a run."""
        self._client.set_terminated(self._run, "FINISHED" if complete else "KILLED")

    def _create(self, name: str, settings: Mapping[str, Any]) -> str:
        """Begin a run, with its settings, in the experiment that the environment names."""
        title = os.environ.get("MLFLOW_EXPERIMENT_NAME", "madao")
        experiment = self._client.get_experiment_by_name(title)
        number = self._client.create_experiment(title) if experiment is None else experiment.experiment_id
        run: str = self._client.create_run(number, run_name=name).info.run_id
        params = [Param(key, str(value)) for key, value in _flat(settings).items()]
        for start in range(0, len(params), _PARAMS_PER_CALL):
            self._client.log_batch(run, params=params[start : start + _PARAMS_PER_CALL])
        return run


def _flat(settings: Mapping[str, Any]) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in settings.items():
        flat |= {f"{key}.{inner}": each for inner, each in value.items()} if isinstance(value, dict) else {key: value}
    return flat
