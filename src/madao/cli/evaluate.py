"""`madao evaluate`: measure a model that `madao train` trained."""

import dataclasses
import json
from pathlib import Path
from typing import Any, Literal

from madao.cli.parser import call
from madao.config.train_config import from_dict
from madao.device.precision import set_precision
from madao.errors import DataError, ModelError, UserError
from madao.files import load_torch
from madao.tasks import EvalResult
from madao.training.builders.environment import pick_device
from madao.training.builders.model import build_model
from madao.training.builders.policy import build_base_augmentation
from madao.training.builders.task import build_task
from madao.training.evaluate import evaluate_images
from madao.training.linear_probe import LinearProtocol, linear_evaluation
from madao.training.run.directory import RunDirectory
from madao.training.splits import load_splits, on_device


def command(arguments: list[str]) -> None:
    """Evaluate as the command line says."""
    call(evaluate, "evaluate", arguments, plain="run")


def evaluate(
    run: str,
    weights: Literal["best", "last"] | None = None,
    split: Literal["test", "validation"] = "test",
    root: str | None = None,
    batch_size: int = 500,
    device: str = "auto",
    protocol: Literal["task", "linear"] = "task",
    linear: LinearProtocol = LinearProtocol(),  # noqa: B008 -- frozen
) -> None:
    """Measure the error of a trained model on images that are not augmented.

    Args:
        run: The run directory.
        weights: The best on the run's validation images, or those of its last checkpoint. By default those that saw
            the test set at the end of the run.
        split: Which images.
        root: Where the data lies now, or other data of the same classes. By default where it lay in training.
        batch_size: Images in one pass.
        device: auto, cpu or cuda.
        protocol: What the run's own task measures; or linear: a linear classifier on the frozen features of moco.
        linear: How that classifier is trained.
    """
    directory = RunDirectory(Path(run))
    saved = directory.saved_config()
    if saved is None:
        raise UserError(f"{run} is no run directory: it has no config.yaml")
    config = from_dict(saved)
    if protocol == "linear" and config.task.name != "moco":
        raise UserError(f"--protocol linear measures the features of moco, but {run} learned {config.task.name}")
    weights = weights or config.eval_checkpoint
    data = config.data if root is None else dataclasses.replace(config.data, root=root)
    where = pick_device(device)
    autocast = set_precision(config.precision, where)
    state: dict[str, Any] | None
    state = load_torch(directory.best) if weights == "best" else directory.checkpoints.load()
    if state is None:
        raise UserError(f"{run} has no checkpoint yet")
    splits, _ = on_device(load_splits(data), data, where)  # decoded by whom the run had them decoded
    trained = len(state["classes"])
    if len(splits.classes) > trained:
        raise UserError(f"the data has {len(splits.classes)} classes, the model of {run} was trained on {trained}")
    if list(splits.classes) != state["classes"]:
        other = next((name for name in splits.classes if name not in state["classes"]), splits.classes[0])
        raise UserError(f"the classes are not those the model of {run} was trained on: {other!r} is new or elsewhere")
    images = splits.test if split == "test" else splits.validation
    if images is None:
        other = "validation" if split == "test" else "test"
        there = splits.validation if split == "test" else splits.test
        remedy = "name a folder that has one by --root" if there is None else f"use --split {other}"
        raise UserError(f"this data has no {split} split; {remedy}")
    # As the model was trained, whatever the images at hand are.
    trained_on = json.loads((directory.path / "split.json").read_text())
    splits = dataclasses.replace(splits, mean=tuple(trained_on["mean"]), std=tuple(trained_on["std"]))
    model = build_model(dataclasses.replace(config.model, pretrained=False), splits, config.task)
    average = state.get("average")
    try:
        model.load_state_dict(average["module"] if average else state["model"])
        standard = build_base_augmentation(config.augment, splits, 0)
        model.to(where)
        task = build_task(config, splits, model, standard, autocast=autocast)
        if protocol == "linear":
            found = linear_evaluation(
                model, splits.train, images, len(splits.classes), standard, linear, autocast, data.processes
            )
        else:
            found = evaluate_images(
                model,
                images,
                splits.train,
                task,
                standard,
                autocast=autocast,
                batch_size=batch_size,
                workers=data.processes,
            )
    except (DataError, ModelError, RuntimeError) as error:
        raise UserError(" ".join(str(error).split())[:300]) from None
    called = "linear error" if protocol == "linear" else task.metric_name
    print(
        f"{split} {called} {100 * found.error:.2f} % {_of(found)}, loss {found.loss:.4f}, "
        f"{weights} weights of {run} (epoch {state['epoch']})"
    )


def _of(found: EvalResult) -> str:
    """What the error is the part of, and what else was measured."""
    if "mean_class_error" in found.metrics:
        others = f", mean per-class error {100 * found.metrics['mean_class_error']:.2f} %"
        return f"({round(found.error * found.count)} of {found.count}){others}"
    others = "".join(f", {name.replace('_', ' ')} {100 * value:.2f} %" for name, value in found.metrics.items())
    return f"({found.count} images){others}"
