"""The training of `madao.fit`, from its arguments to its result."""

import dataclasses
import itertools
import os
from pathlib import Path
from typing import Any

from torch import nn

from madao.config.train_config import FROM_PYTHON, TrainConfig, from_dict
from madao.data import Dataset
from madao.data.torch_dataset import TorchDatasetImages, read_labels, shape_of
from madao.errors import UserError
from madao.fitting.result import FitResult
from madao.inference import load_model
from madao.policy import load_policy
from madao.training.builders.model import model_name
from madao.training.builders.run import build_run
from madao.training.monitor.advice import describe_run
from madao.training.run.directory import run_directory
from madao.training.run.result import Result
from madao.training.run.state import Run
from madao.training.splits import image_side, load_splits
from madao.training.trainer import Trainer


def train(
    data: Any,
    model: str | nn.Module | dict[str, Any] | None,
    validation: Any,
    test: Any,
    quiet: bool,
    settings: dict[str, Any],
) -> FitResult:
    """Train; arguments as of `madao.fit`."""
    if _is_path(data) and not (validation is None and test is None):
        raise UserError("validation and test go with data sets; a folder has them in its folders val/ and test/")
    config = _config(data, model, settings)
    splits = load_splits(config.data, None if _is_path(data) else _dataset(config, data, validation, test))
    network = model if isinstance(model, nn.Module) else None
    if config.out is None:
        name = type(network).__name__ if network is not None else model_name(config.model, splits, config.task)
        config = dataclasses.replace(config, out=str(_free_folder(run_directory(config, splits.name, name))))
    run = build_run(config, splits, network=network, quiet=quiet)
    for line in describe_run(run):
        run.console.say(line)
    return _fit_result(run, Trainer(run).fit(), network)


def _config(data: Any, model: str | nn.Module | dict[str, Any] | None, settings: dict[str, Any]) -> TrainConfig:
    """Return the settings of a call of `fit`."""
    plain = {name: dict(value) if isinstance(value, dict) else value for name, value in settings.items()}
    named = {"data": {"root": os.fspath(data)} if _is_path(data) else {"name": FROM_PYTHON}}
    if model is not None:
        name = f"{FROM_PYTHON}:{type(model).__name__}" if isinstance(model, nn.Module) else model
        named["model"] = name if isinstance(name, dict) else {"name": name}
    for section, values in named.items():
        plain[section] = {**values, **plain.get(section, {})}
    return from_dict(plain)


def _is_path(data: Any) -> bool:
    return isinstance(data, str | os.PathLike)


def _dataset(config: TrainConfig, train: Any, validation: Any, test: Any) -> Dataset:
    """Return data sets of torch as a data set of madao."""
    channels, small = shape_of(train, "data")
    side = image_side(config.data) if small is None else config.data.size or small
    labels = {"data": read_labels(train, "data")}
    labels |= {
        name: read_labels(each, name) for name, each in (("validation", validation), ("test", test)) if each is not None
    }
    classes = _class_names(train, int(max(each.max() for each in labels.values())) + 1)

    def images(dataset: Any, name: str) -> TorchDatasetImages | None:
        if dataset is None:
            return None
        return TorchDatasetImages(dataset, labels[name], side, channels, config.data.on_error)

    own = TorchDatasetImages(train, labels["data"], side, channels, config.data.on_error)
    return Dataset(
        FROM_PYTHON, classes, own, images(validation, "validation"), images(test, "test"), flip=False, whole=bool(small)
    )


def _class_names(dataset: Any, count: int) -> tuple[str, ...]:
    """Return the names of the classes: the attribute `classes` as torchvision has it, else numbers."""
    known = getattr(dataset, "classes", None)
    if isinstance(known, list | tuple) and len(known) >= count:
        return tuple(map(str, known))
    return tuple(map(str, range(count)))


def _free_folder(path: Path) -> Path:
    """Return a path, with a number behind it if there is such a folder already."""
    names = itertools.chain([path], (path.with_name(f"{path.name}-{number}") for number in itertools.count(2)))
    return next(each for each in names if not each.exists())


def _fit_result(run: Run, result: Result, network: nn.Module | None) -> FitResult:
    rows = run.directory.read_metrics()
    history = [{name: float(value) if value else None for name, value in row.items()} for row in rows]
    path = run.directory.path
    return FitResult(
        model=load_model(path, network=network),
        policy=load_policy(path) if (path / "policy.json").exists() else None,
        run=path,
        test_error=result.test_error,
        validation_error=result.validation_error,
        history=history,
    )
