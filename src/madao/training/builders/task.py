"""The task of a run, checked against its settings."""

import torch
from torch import nn

from madao.config.train_config import TrainConfig
from madao.distributed.group import ProcessGroup
from madao.errors import UserError
from madao.policy import AugmentationPolicy, BaseAugmentation
from madao.tasks import Classification, MoCo, Segmentation, Task
from madao.training.splits import Splits


def build_task(
    config: TrainConfig,
    splits: Splits,
    network: nn.Module,
    base_augmentation: BaseAugmentation,
    ranks: ProcessGroup | None = None,
    autocast: torch.dtype | None = None,
) -> Task:
    """Build the task that `config.task` names.

    Args:
        config: The settings of the run.
        splits: The images.
        network: The model, of which MoCo keeps a copy for its keys.
        base_augmentation: Crop, flip, normalise and Cutout.
        ranks: The processes of the run. By default there is one.
        autocast: The half-precision dtype of forward passes, if any.

    Raises:
        UserError: Two settings contradict each other.
    """
    smoothing = config.optimizer.label_smoothing
    if smoothing and config.task.name != "classification":
        raise UserError(
            f"`optimizer.label_smoothing` must be 0 for the task {config.task.name}, got {smoothing}; leave it out"
        )
    if config.task.name == "moco":
        _check_moco(config, splits, ProcessGroup() if ranks is None else ranks)
        return _moco(config, splits, network, base_augmentation, ProcessGroup() if ranks is None else ranks, autocast)
    if config.task.name == "segmentation":
        return Segmentation(len(splits.classes))
    return Classification(len(splits.classes), smoothing)


def _check_moco(config: TrainConfig, splits: Splits, ranks: ProcessGroup) -> None:
    """Raise unless the settings suit MoCo: no Cutout, a long queue, and passes that the shards of BatchNorm divide."""
    task = config.task
    if config.augment.cutout:
        raise UserError(f"`augment.cutout` must be 0 for the task moco, got {config.augment.cutout}; leave it out")
    if 2 * config.batch_size > task.queue:
        raise UserError(f"`task.queue` must hold two batches of {config.batch_size} images, got {task.queue}")
    outer, batch = config.outer, min(config.batch_size, len(splits.train)) / ranks.world
    passes = {"batch_size": batch / config.accumulate}
    if outer.model_mode == "train":
        of_steps = {"train_batch_size": (outer.train_batch_size or 0) / ranks.world}
        for name in ("curvature_batch_size", "pathwise_batch_size"):
            of_steps[name] = max((getattr(outer, name) or 0) // ranks.world, 0)
        passes |= {f"outer.{name}": size for name, size in {**of_steps, "microbatch": outer.microbatch or 0}.items()}
    for name, size in passes.items():
        if size % task.bn_splits:
            raise UserError(
                f"`task.bn_splits` must divide the images of one pass, {size:g} by `{name}`, got {task.bn_splits}"
            )


def _moco(
    config: TrainConfig,
    splits: Splits,
    network: nn.Module,
    base_augmentation: BaseAugmentation,
    ranks: ProcessGroup,
    autocast: torch.dtype | None,
) -> MoCo:
    task = config.task
    temperature = {"v1": 0.07, "v2": 0.2}[task.version] if task.temperature is None else task.temperature
    return MoCo(
        network,
        task.dimensions,
        base_augmentation,
        len(splits.classes),
        queue=task.queue,
        momentum=task.momentum,
        temperature=temperature,
        neighbours=task.neighbours,
        splits=task.bn_splits,
        training=config.outer.model_mode == "train",
        autocast=autocast,
        group=ranks,
        seed=config.seed,
    )


def check_policy(policy: AugmentationPolicy | None, task: Task) -> None:
    """Raise `UserError` if a conditional policy does not suit the task."""
    if policy is not None and policy.classes and task.targets_follow_policy:
        raise UserError(f"a policy for each class needs a class for every image, and {task.name} has none")
    if policy is not None and policy.uses_image and task.views > 1:
        raise UserError(f"a policy for each image draws for one view of it, and {task.name} has {task.views}")
