"""The model of a run and its optimizer."""

import dataclasses

import torch
from torch import nn

from madao.config.train_config import FROM_PYTHON, ModelConfig, OptimizerConfig, TaskConfig, TrainConfig
from madao.distributed.launch import convert_sync_batchnorm
from madao.errors import UnknownModelError, UserError
from madao.models import build, build_dense, build_encoder, check_head, known, known_dense
from madao.models.fine_tuning import freeze_norms, parameter_groups, pretrained_statistics
from madao.text import nearest
from madao.training.builders.environment import Environment
from madao.training.splits import Splits


def build_network(
    config: TrainConfig, splits: Splits, environment: Environment, network: nn.Module | None = None
) -> nn.Module:
    """Build the model of a run, or take `network`, ready for its processes. Seeds torch's random numbers."""
    torch.manual_seed(config.seed)
    if network is None:
        network = build_model(config.model, splits, config.task)
    elif config.task.name == "classification":
        check_head(network, len(splits.classes), splits.channels, splits.size)
    torch.manual_seed(config.seed + 7919 * environment.ranks.rank)  # every process has dropout masks of its own
    if config.model.freeze_norm:
        freeze_norms(network)
    if config.sync_batch_norm:
        twice = config.augment.method == "learned" and config.outer.model_mode == "train"
        network = convert_sync_batchnorm(network, environment.device, twice)
    if environment.device.type == "cuda":
        # Convolutions in half precision want this layout: otherwise each of them transposes its inputs and outputs.
        network.to(memory_format=torch.channels_last)
    return network


def build_model(config: ModelConfig, splits: Splits, task: TaskConfig | None = None) -> nn.Module:
    """Build the model that a configuration names, for the classes, channels and size of the images.

    Raises:
        UserError: The model is unknown, or does not suit the images or the task.
    """
    task = TaskConfig() if task is None else task
    masks = splits.train.targets.dim() == 3
    if masks != (task.name == "segmentation"):
        has, remedy = (
            ("masks", "use `task.name=segmentation`")
            if masks
            else ("no masks", "use `data.name=shapes` or `data.name=masks`")
        )
        raise UserError(f"the data set {splits.name} has {has}, so {task.name} cannot be learned from it; {remedy}")
    name = model_name(config, splits, task)
    return build_named_model(name, config, task, len(splits.classes), splits.channels, splits.size)


def build_named_model(
    name: str, config: ModelConfig, task: TaskConfig, classes: int, channels: int, size: int
) -> nn.Module:
    """Build a model by name, for a number of classes and channels and a size of images.

    Raises:
        UserError: The model is unknown, or does not suit the images or the task.
    """
    if name.startswith(f"{FROM_PYTHON}:"):
        raise UserError(
            f"this model is the {name.partition(':')[2]} that `madao.fit` was given; pass such a module, as in "
            "madao.load_model(run, network=module)"
        )
    try:
        if task.name == "segmentation":
            return build_dense(name, classes, channels, size, config.pretrained)
        if task.name == "moco":
            hidden = task.version == "v2"
            return build_encoder(
                name, task.dimensions, channels, size, config.pretrained, config.stem, hidden, task.bn_splits
            )
        return build(name, classes, channels, size, config.pretrained, config.stem)
    except UnknownModelError:
        names = known_dense() if task.name == "segmentation" else known()
        raise UserError(f"unknown model {nearest(name, names)}") from None
    except ValueError as error:
        raise UserError(str(error)) from None


def with_pretrained_statistics(splits: Splits, config: TrainConfig) -> Splits:
    """Return the splits with the mean and standard deviation that the settings normalise by.

    Raises:
        UserError: The settings name the statistics of published weights, and the model has none.
    """
    if config.augment.statistics == "data" or not (config.augment.statistics or config.model.pretrained):
        return splits
    name = model_name(config.model, splits, config.task)
    found = pretrained_statistics(name, splits.channels)
    if found is None and config.augment.statistics == "pretrained":
        raise UserError(f"{name} has no published weights, so `augment.statistics=pretrained` is unknown; use data")
    return splits if found is None else dataclasses.replace(splits, mean=found[0], std=found[1])


def model_name(config: ModelConfig, splits: Splits, task: TaskConfig) -> str:
    """Return the name of a run's model; if the settings name none, of one that suits the images."""
    if config.name:
        return config.name
    if task.name == "segmentation":
        return "small-fcn" if splits.size <= 28 else "fcn_resnet50"
    return "small-cnn" if splits.size <= 28 else "resnet18"


def build_optimizer(config: OptimizerConfig, network: nn.Module, device: torch.device) -> torch.optim.Optimizer:
    """Build the optimizer of a network. The learning rate of a group is a multiple of the run's, `lr_scale`."""
    on_gpu = device.type == "cuda"
    groups = parameter_groups(network, config.head_lr_scale)
    if config.name == "adamw":
        return torch.optim.AdamW(
            groups, lr=config.lr, weight_decay=config.weight_decay, fused=on_gpu, capturable=on_gpu
        )
    return torch.optim.SGD(
        groups,
        lr=config.lr,
        momentum=config.momentum,
        nesterov=config.nesterov,
        weight_decay=config.weight_decay,
        fused=on_gpu,
    )
