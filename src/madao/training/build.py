"""From a configuration to the things a run needs."""

import dataclasses
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from madao.data import (
    DATASETS,
    DataError,
    Dataset,
    Files,
    Images,
    Pixels,
    Source,
    check_classes,
    mean_and_std,
    stratified,
)
from madao.models import UnknownModel, build, known
from madao.ops.checks import nearest
from madao.policy import AugmentationPolicy, ClassPolicy, Policy, RandAugment, Standard, Uniform, load_policy
from madao.policy.named import NAMED
from madao.training.config import AugmentConfig, DataConfig, ModelConfig
from madao.training.errors import UserError

METHODS = ("madao", "standard", *NAMED)
_OWN_SIZE = ("cifar10", "cifar100", "svhn", "npz", "digits")
"""Data sets whose images have all one size: they are seen whole."""
_FILE_SIZE = 224
_CANVAS = 256 / 224
"""Files are stored so much larger than what the model sees, as is usual, so that there is something to crop."""


@dataclasses.dataclass(frozen=True, eq=False)
class Splits:
    """The images of a run.

    Attributes:
        name: Of the data set.
        classes: Names of the classes.
        train: What weights learn from.
        validation: What the policy learns from, and the best checkpoint is chosen by.
        test: What is looked at once, at the end, if there is any.
        flip: Whether a mirrored image means the same.
        size: Side of what the model sees.
        mean: Of the training images in [0, 1], per channel.
        std: Of the training images in [0, 1], per channel.
        validation_indices: Which of the training images were set aside; None where validation has a split of its own.
        skipped: How many images could not be read and were left out.
    """

    name: str
    classes: tuple[str, ...]
    train: Images
    validation: Images
    test: Images | None
    flip: bool
    size: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    validation_indices: Tensor | None
    skipped: int

    def fingerprint(self) -> dict[str, object]:
        """What tells these images from others, in short."""
        return {
            "classes": list(self.classes),
            "train": len(self.train),
            "validation": len(self.validation),
            "mean": list(self.mean),
            "std": list(self.std),
        }

    def on(self, device: torch.device) -> "Splits":
        """With what is in memory on a device, once, however many batches are made of it."""

        def moved(images: Images) -> Images:
            return images.on(device) if isinstance(images, Pixels) else images

        test = None if self.test is None else moved(self.test)
        return dataclasses.replace(self, train=moved(self.train), validation=moved(self.validation), test=test)

    @property
    def channels(self) -> int:
        """Of the images."""
        return self.train.shape[0]


def load_dataset(config: DataConfig) -> Dataset:
    """The data set a configuration names."""
    name = config.name or ("digits" if config.root is None else "npz" if config.root.endswith(".npz") else "folder")
    if name not in DATASETS:
        raise UserError(f"unknown data set {nearest(name, DATASETS)}")
    if config.planted != "none" and name != "digits":
        raise UserError(f"--data.planted belongs to the data set digits, got {name}")
    if config.root is None and name in ("folder", "npz"):
        raise UserError(f"the data set {name} needs --data.root")
    side = None if config.size is None else config.size if name in _OWN_SIZE else round(config.size * _CANVAS)
    try:
        return DATASETS[name](
            Source(Path(config.root or "data"), config.download, side, config.on_error, config.planted)
        )
    except DataError as error:
        raise UserError(str(error)) from None


def load_splits(config: DataConfig) -> Splits:
    """Load the data set and set validation images aside."""
    dataset = load_dataset(config)
    try:
        train, validation, indices = _set_aside(dataset, config)
        check_classes(train.labels, dataset.classes, "training")
        check_classes(validation.labels, dataset.classes, "validation")
        (train, lost_train), (validation, lost_validation) = (
            _in_memory(images, config) for images in (train, validation)
        )
        test, lost_test = (None, 0) if dataset.test is None else _in_memory(dataset.test, config)
        mean, std = mean_and_std(train, workers=config.processes if isinstance(train, Files) else 0)
    except DataError as error:
        raise UserError(str(error)) from None
    stored = min(train.shape[1:])
    size = stored if dataset.name in _OWN_SIZE else config.size or _FILE_SIZE
    return Splits(
        name=dataset.name,
        classes=dataset.classes,
        train=train,
        validation=validation,
        test=test,
        flip=dataset.flip,
        size=size,
        mean=mean,
        std=std,
        validation_indices=indices,
        skipped=lost_train + lost_validation + lost_test,
    )


def _set_aside(dataset: Dataset, config: DataConfig) -> tuple[Images, Images, Tensor | None]:
    if dataset.validation is not None:
        return dataset.train, dataset.validation, None
    kept, aside = stratified(dataset.train.labels, config.validation, config.split_seed, dataset.classes)
    return dataset.train.subset(kept), dataset.train.subset(aside), aside


def _in_memory(images: Images, config: DataConfig) -> tuple[Images, int]:
    """The images decoded, if they fit; and how many could not be."""
    channels, height, width = images.shape
    if not isinstance(images, Files) or len(images) * channels * height * width > config.memory * 2**30:
        return images, 0
    decoded, lost = images.decode_all(config.processes)
    return decoded, len(lost)


def build_model(config: ModelConfig, splits: Splits) -> nn.Module:
    """The model, checked against the data."""
    name = config.name or default_model(splits.size)
    try:
        return build(name, len(splits.classes), splits.channels, splits.size, config.pretrained, config.stem)
    except UnknownModel:
        raise UserError(f"unknown model {nearest(name, known())}") from None
    except ValueError as error:
        raise UserError(str(error)) from None


def default_model(size: int) -> str:
    """What suits images of a size."""
    return "small-cnn" if size <= 28 else "resnet18"


def build_policy(config: AugmentConfig, classes: tuple[str, ...], seed: int) -> AugmentationPolicy | None:
    """What stands between standard augmentation's crop and normalising; None for the method standard."""
    chosen: dict[str, Any] = {"limits": config.limits, "without": config.without, "seed": seed}
    try:
        match config.method:
            case "standard":
                return None
            case "madao" if config.condition == "class":
                return ClassPolicy(classes, config.stages, config.shrinkage, **chosen)
            case "madao":
                return Policy(config.stages, **chosen)
            case "uniform":
                return Uniform(config.stages, **chosen)
            case "randaugment":
                return RandAugment(config.stages, config.magnitude, seed=seed)
        if config.method not in METHODS and not config.method.endswith(".json") and "/" not in config.method:
            raise UserError(f"unknown method {nearest(config.method, METHODS)}; or give the path of a policy.json")
        policy = load_policy(config.method, seed)
        if policy.classes not in ((), classes):
            raise UserError(
                f"{config.method} has a policy for each of the classes {', '.join(policy.classes[:5])} …, and these "
                f"images have {', '.join(classes[:5])} …; write what its classes share by madao export --label shared "
                "--to json, and give that file"
            )
        return policy
    except (ValueError, OSError) as error:
        raise UserError(str(error)) from None


def build_standard(config: AugmentConfig, splits: Splits, seed: int) -> Standard:
    """Standard augmentation; the policy stands between its `before` and its `after`."""
    return Standard(
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
        raise UserError(f"--device {name}: this machine has {torch.cuda.device_count()} CUDA devices; use --device cpu")
    return device
