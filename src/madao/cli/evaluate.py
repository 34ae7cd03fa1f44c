"""`madao evaluate`: measure the error of a model that `madao train` trained."""

import dataclasses
import sys
from pathlib import Path
from typing import Literal

from madao.cli.parser import call
from madao.device.precision import set_precision
from madao.errors import DataError, ModelError, UserError
from madao.inference.saved_run import SavedRun
from madao.inference.trained_on import trained_on_warning
from madao.tasks import EvalResult
from madao.training.builders.environment import pick_device
from madao.training.builders.model import build_model
from madao.training.builders.policy import build_base_augmentation
from madao.training.builders.task import build_task
from madao.training.evaluate import evaluate_images
from madao.training.linear_probe import LinearProtocol, linear_evaluation
from madao.training.run.contents import fitting
from madao.training.splits import load_splits, on_device


def command(arguments: list[str]) -> None:
    """Run `madao evaluate`."""
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
    """Measure the error of a trained model on images without augmentation.

    Args:
        run: Run directory.
        weights: Weights to evaluate: best (best on the validation set) or last (last checkpoint). By default those that
            the run evaluated on the test set.
        split: Images to evaluate on.
        root: Folder of the data, if it has moved, or of other data with the same classes. By default as in training.
        batch_size: Number of images in each pass.
        device: Device to use: auto (a GPU if there is one), cpu or cuda.
        protocol: Measure: task (as in training) or linear (error of a linear classifier on MoCo's frozen features).
        linear: Training of the linear classifier.
    """
    saved = SavedRun(Path(run))
    config = saved.config
    if protocol == "linear" and config.task.name != "moco":
        raise UserError(f"--protocol linear needs a run of the task moco, but the task of {run} is {config.task.name}")
    weights = weights or config.eval_checkpoint
    data = config.data if root is None else dataclasses.replace(config.data, root=root)
    where = pick_device(device)
    autocast = set_precision(config.precision, where)
    state = saved.read_checkpoint(weights)
    splits, _ = on_device(load_splits(data), data, where)  # with the decoder of the run
    trained = len(state["classes"])
    if len(splits.classes) > trained:
        raise UserError(f"the data has {len(splits.classes)} classes, but the model of {run} was trained on {trained}")
    if list(splits.classes) != state["classes"]:
        other = next((name for name in splits.classes if name not in state["classes"]), splits.classes[0])
        raise UserError(f"the model of {run} was trained on other classes: {other!r} is new or out of order")
    images = splits.test if split == "test" else splits.validation
    if images is None:
        other = "validation" if split == "test" else "test"
        there = splits.validation if split == "test" else splits.test
        remedy = "use --root with a folder that has one" if there is None else f"use --split {other}"
        raise UserError(f"this data has no {split} split; {remedy}")
    warning = trained_on_warning(config, data, split, splits)
    if warning is not None:
        print(f"madao: {warning}", file=sys.stderr)
    # Normalise as in training, even if the images are others.
    mean, std = saved.read_statistics(splits.channels)
    splits = dataclasses.replace(splits, mean=mean, std=std)
    model = build_model(dataclasses.replace(config.model, pretrained=False), splits, config.task)
    average = state.get("average")
    with fitting(saved.directory.path / "checkpoints" / f"{weights}.pt"):
        model.load_state_dict(average["module"] if average else state["model"])
    try:
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
    """Return the number of images and any other metrics."""
    if "mean_class_error" in found.metrics:
        others = f", mean per-class error {100 * found.metrics['mean_class_error']:.2f} %"
        return f"({round(found.error * found.count)} of {found.count}){others}"
    others = "".join(f", {name.replace('_', ' ')} {100 * value:.2f} %" for name, value in found.metrics.items())
    return f"({found.count} images){others}"
