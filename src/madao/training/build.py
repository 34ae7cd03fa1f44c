"""From a configuration to the things a run needs."""

from typing import Any

import torch
from torch import nn

from madao.config.train_config import AugmentConfig, ModelConfig, OptimizerConfig, TaskConfig, TrainConfig
from madao.distributed.group import ProcessGroup
from madao.errors import UnknownModelError, UserError
from madao.models import build, build_dense, build_encoder, known, known_dense
from madao.policy import (
    AugmentationPolicy,
    BaseAugmentation,
    ClassPolicy,
    ImagePolicy,
    Policy,
    RandAugment,
    Uniform,
    load_policy,
)
from madao.policy.baselines.fixed import START
from madao.policy.registry import NAMED
from madao.tasks import Classification, MoCo, Segmentation, Task
from madao.text import counted, nearest
from madao.training.splits import Splits

METHODS = ("learned", "base", *NAMED)


def build_model(config: ModelConfig, splits: Splits, task: TaskConfig | None = None) -> nn.Module:
    """The model, checked against the data."""
    task = TaskConfig() if task is None else task
    masks = splits.train.targets.dim() == 3
    if masks != (task.name == "segmentation"):
        has, remedy = (
            ("masks", "use --task.name segmentation") if masks else ("no masks", "use --data.name shapes or masks")
        )
        raise UserError(f"the data set {splits.name} has {has}, so {task.name} cannot be learned from it; {remedy}")
    name = model_name(config, splits, task)
    size, channels = splits.size, splits.channels
    try:
        if masks:
            return build_dense(name, len(splits.classes), channels, size, config.pretrained)
        if task.name == "moco":
            hidden = task.version == "v2"
            return build_encoder(
                name, task.dimensions, channels, size, config.pretrained, config.stem, hidden, task.bn_splits
            )
        return build(name, len(splits.classes), channels, size, config.pretrained, config.stem)
    except UnknownModelError:
        raise UserError(f"unknown model {nearest(name, known_dense() if masks else known())}") from None
    except ValueError as error:
        raise UserError(str(error)) from None


def build_optimizer(config: OptimizerConfig, network: nn.Module, device: torch.device) -> torch.optim.SGD:
    """SGD on what learns of a network."""
    return torch.optim.SGD(
        network.parameters(),
        lr=config.lr,
        momentum=config.momentum,
        nesterov=config.nesterov,
        weight_decay=config.weight_decay,
        fused=device.type == "cuda",
    )


def build_task(
    config: TrainConfig,
    splits: Splits,
    network: nn.Module,
    standard: BaseAugmentation,
    ranks: ProcessGroup | None = None,
    autocast: torch.dtype | None = None,
) -> Task:
    """What is learned."""
    smoothing = config.optimizer.label_smoothing
    if smoothing and config.task.name != "classification":
        raise UserError(f"--optimizer.label_smoothing belongs to classification, got {smoothing}; leave it at 0")
    if config.task.name == "moco":
        return _moco(config, splits, network, standard, ProcessGroup() if ranks is None else ranks, autocast)
    if config.task.name == "segmentation":
        return Segmentation(len(splits.classes))
    return Classification(len(splits.classes), smoothing)


def _moco(
    config: TrainConfig,
    splits: Splits,
    network: nn.Module,
    standard: BaseAugmentation,
    ranks: ProcessGroup,
    autocast: torch.dtype | None,
) -> MoCo:
    task = config.task
    if config.augment.cutout:
        raise UserError(f"--augment.cutout does not go with moco, got {config.augment.cutout}; leave it at 0")
    if 2 * config.batch_size > task.queue:
        raise UserError(f"--task.queue must hold two batches of {config.batch_size}, got {task.queue}")
    outer, batch = config.outer, min(config.batch_size, len(splits.train)) / ranks.world
    passes = {"--batch_size": batch / config.accumulate}
    if outer.model_mode == "train":
        of_steps = {"train_batch_size": (outer.train_batch_size or 0) / ranks.world}
        for name in ("curvature_batch_size", "pathwise_batch_size"):
            of_steps[name] = max((getattr(outer, name) or 0) // ranks.world, 0)
        passes |= {f"--outer.{name}": size for name, size in {**of_steps, "microbatch": outer.microbatch or 0}.items()}
    for name, size in passes.items():
        if size % task.bn_splits:
            raise UserError(
                f"--task.bn_splits must divide the images of one pass, {size:g} by {name}, got {task.bn_splits}"
            )
    temperature = {"v1": 0.07, "v2": 0.2}[task.version] if task.temperature is None else task.temperature
    return MoCo(
        network,
        task.dimensions,
        standard,
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


def model_name(config: ModelConfig, splits: Splits, task: TaskConfig) -> str:
    """The model of a run, where the settings leave it open too."""
    return config.name or default_model(splits.size, task.name)


def default_model(size: int, task: str = "classification") -> str:
    """What suits images of a size."""
    if task == "segmentation":
        return "small-fcn" if size <= 28 else "fcn_resnet50"
    return "small-cnn" if size <= 28 else "resnet18"


def build_policy(config: AugmentConfig, classes: tuple[str, ...] | None, seed: int) -> AugmentationPolicy | None:
    """What stands between standard augmentation's crop and normalising; None for the method standard.

    Where classes are not known yet (None) it is good for finding mistakes in the configuration.
    """
    chosen: dict[str, Any] = {
        "limits": config.limits,
        "exclude": config.exclude,
        "magnitude_jitter": config.magnitude_jitter,
    }
    chosen["seed"], start = seed, config.init_magnitude
    try:
        match config.method:
            case "base":
                return None
            case "learned" if config.conditional_on == "class":
                return ClassPolicy(
                    ("0", "1") if classes is None else classes,
                    config.stages,
                    config.shrinkage,
                    init_magnitude=start,
                    **chosen,
                )
            case "learned" if config.conditional_on == "image":
                return ImagePolicy(config.stages, shrinkage=config.shrinkage, init_magnitude=start, **chosen)
            case "learned":
                return Policy(config.stages, init_magnitude=start, **chosen)
            case "uniform":
                return Uniform(config.stages, magnitude=START if start is None else start, **chosen)
            case "randaugment":
                return RandAugment(config.stages, config.magnitude, seed=seed)
        if config.method not in METHODS and not config.method.endswith(".json") and "/" not in config.method:
            raise UserError(f"unknown method {nearest(config.method, METHODS)}; or give the path of a policy.json")
        policy = load_policy(config.method, seed)
        if classes is not None and policy.classes not in ((), classes):
            raise UserError(
                f"{config.method} has a policy for each of the classes {', '.join(policy.classes[:5])} …, and these "
                f"images have {', '.join(classes[:5])} …; write what its classes share by madao export --label shared "
                "--to json, and give that file"
            )
        return policy
    except (ValueError, OSError) as error:
        raise UserError(str(error)) from None


def standardise(policy: ImagePolicy, splits: Splits, standard: BaseAugmentation, most: int = 512) -> None:
    """Let a policy that looks at images know what they look like, by crops of training images, evenly spaced."""
    count = min(len(splits.train), most)
    pixels, _ = splits.train.load([index * len(splits.train) // count for index in range(count)])
    images = standard.centre(pixels) if standard.scale is None else pixels
    draw = standard.sample(images, torch.Generator(images.device).manual_seed(0))
    policy.standardise(standard.before(images, draw).to(policy.get_buffer("centre").device))


def build_base_augmentation(config: AugmentConfig, splits: Splits, seed: int) -> BaseAugmentation:
    """Standard augmentation; the policy stands between its `before` and its `after`."""
    return BaseAugmentation(
        padding=config.padding if config.crop == "pad" else 0,
        flip=splits.flip if config.flip is None else config.flip,
        cutout=config.cutout,
        mean=splits.mean if config.normalise else None,
        std=splits.std if config.normalise else None,
        seed=seed,
        size=splits.size,
        scale=config.scale if config.crop == "resized" else None,
    )


def pick_device(name: str) -> torch.device:
    """The device a configuration names."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise UserError(f"--device must be auto, cpu, cuda or cuda:1, got {name!r}") from None
    if device.type == "cuda" and (not torch.cuda.is_available() or (device.index or 0) >= torch.cuda.device_count()):
        raise UserError(
            f"--device {name}: this machine has {counted(torch.cuda.device_count(), 'CUDA device')}; use --device cpu"
        )
    return device
