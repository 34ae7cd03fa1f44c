"""Training from Python: `madao.fit` and its result."""

import dataclasses
import html
import itertools
import os
from pathlib import Path
from typing import Any

from torch import nn

from madao.config.train_config import FROM_PYTHON, TrainConfig, from_dict
from madao.data import Dataset
from madao.data.torch_dataset import TorchDatasetImages, read_labels, shape_of
from madao.errors import UserError
from madao.inference import load_model
from madao.policy import AugmentationPolicy, load_policy
from madao.training.builders.model import model_name
from madao.training.builders.run import build_run
from madao.training.monitor.advice import describe_run
from madao.training.run.directory import run_directory
from madao.training.run.result import Result
from madao.training.run.state import Run
from madao.training.splits import image_side, load_splits
from madao.training.trainer import Trainer


@dataclasses.dataclass(frozen=True, eq=False)
class FitResult:
    """The result of a training: the model, the policy, the errors and the run directory.

    Attributes:
        model: The trained model on the CPU, in evaluation mode. It takes images of any size, uint8 or float in [0, 1],
            and includes resizing and normalising.
        policy: The policy of the last epoch; None for base augmentation.
        run: The run directory.
        test_error: The error on the test set, between 0 and 1; None without a test set.
        validation_error: The error on the validation set; None without one.
        history: A row for each epoch: the columns of metrics.csv. `pandas.DataFrame(result.history)` is a table.
    """

    model: nn.Module
    policy: AugmentationPolicy | None
    run: Path
    test_error: float | None
    validation_error: float | None
    history: list[dict[str, float | None]]

    def report(self, path: str | os.PathLike[str] | None = None) -> Path:
        """Write the report, one HTML file that opens offline, and return its path.

        Args:
            path: The file to write. By default report.html in the run directory.
        """
        from madao.report import read_run, write_report  # slow to import

        return write_report([read_run(self.run)], self.run / "report.html" if path is None else Path(path))[0]

    def __repr__(self) -> str:
        errors = {"test": self.test_error, "validation": self.validation_error}
        known = [f"{split} error {100 * error:.2f} %" for split, error in errors.items() if error is not None]
        return f"FitResult({', '.join([*known, f'{len(self.history)} epochs', str(self.run)])})"

    def _repr_html_(self) -> str:
        shown = getattr(self.policy, "_repr_html_", lambda: "")()
        return f"<p><b>{html.escape(repr(self))}</b></p>{shown}"


def fit(
    data: Any,
    model: str | nn.Module | None = None,
    *,
    validation: Any = None,
    test: Any = None,
    quiet: bool = False,
    **settings: Any,
) -> FitResult:
    """Train a model and learn its augmentation policy.

    Args:
        data: A folder or file, as for `madao train`, or a data set that yields `(image, label)`: PIL images, uint8
            arrays `[H, W, C]`, or tensors `[C, H, W]`, uint8 or float in [0, 1], neither augmented nor normalised.
        model: The name of a model, or a module from normalised images to logits, which is trained in place. By default
            a model that suits the images.
        validation: A data set of validation images. By default a tenth of the training images, or the folder's `val/`.
        test: A data set of test images. By default none, or the folder's `test/`.
        quiet: Whether to print nothing.
        **settings: Settings of `madao train`, sections as dictionaries: `epochs=30, optimizer={"lr": 0.05}`. Without
            `out`, the run gets a new folder in `runs/`.

    Returns:
        The model, the policy and the errors.

    Raises:
        UserError: A setting, the data or the model cannot be used.
        Interrupted: Ctrl-C stopped the training. The same call with `out` and `resume=True` continues it.

    Example:
        >>> result = madao.fit("photos/", model="resnet18", epochs=30)  # doctest: +SKIP
        >>> result.model(images).argmax(1), result.policy, result.test_error  # doctest: +SKIP
    """
    if _is_path(data) and not (validation is None and test is None):
        raise UserError("validation and test go with data sets; a folder has them in its folders val/ and test/")
    config = _config(data, model, settings)
    splits = load_splits(config.data, None if _is_path(data) else _dataset(config, data, validation, test))
    network = None if model is None or isinstance(model, str) else model
    if config.out is None:
        name = type(network).__name__ if network is not None else model_name(config.model, splits, config.task)
        config = dataclasses.replace(config, out=str(_free_folder(run_directory(config, splits.name, name))))
    run = build_run(config, splits, network=network, quiet=quiet)
    for line in describe_run(run):
        run.console.say(line)
    return _fit_result(run, Trainer(run).fit(), network)


def _config(data: Any, model: str | nn.Module | None, settings: dict[str, Any]) -> TrainConfig:
    """Return the settings of a call of `fit`."""
    plain = {name: dict(value) if isinstance(value, dict) else value for name, value in settings.items()}
    named = {"data": {"root": os.fspath(data)} if _is_path(data) else {"name": FROM_PYTHON}}
    if model is not None:
        named["model"] = {"name": model if isinstance(model, str) else f"{FROM_PYTHON}:{type(model).__name__}"}
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
        name: read_labels(each, name)
        for name, each in (("validation", validation), ("test", test))
        if each is not None
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
