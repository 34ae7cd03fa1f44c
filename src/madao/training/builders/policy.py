"""The policy of a run, and the base augmentation around it."""

from typing import Any

import torch

from madao.config.train_config import AugmentConfig, TrainConfig
from madao.errors import UserError
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
from madao.policy.learned import START
from madao.policy.registry import NAMED
from madao.text import nearest
from madao.training.splits import Splits

METHODS = ("learned", "base", *NAMED)

_STATISTICS_IMAGES = 512


def build_policy(config: AugmentConfig, classes: tuple[str, ...] | None, seed: int) -> AugmentationPolicy | None:
    """Build the policy between base augmentation's crop and normalising; None for the base method.

    Args:
        config: The settings of augmentation.
        classes: The names of the classes. None if they are not known yet: the result then only serves to find
            mistakes in the settings.
        seed: The seed of the policy's draws.

    Raises:
        UserError: The method is unknown, its file cannot be read, or it has other classes.
    """
    chosen: dict[str, Any] = {
        "limits": config.limits,
        "exclude": config.exclude,
        "magnitude_jitter": config.magnitude_jitter,
        "seed": seed,
    }
    start = config.init_magnitude
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
    except (ValueError, OSError) as error:
        raise UserError(str(error)) from None
    if classes is not None and policy.classes not in ((), classes):
        raise UserError(
            f"{config.method} has a policy for each of the classes {', '.join(policy.classes[:5])} …, and these "
            f"images have {', '.join(classes[:5])} …; export the part that its classes share (label shared, to json) "
            "and use that file"
        )
    return policy


def build_base_augmentation(config: AugmentConfig, splits: Splits, seed: int) -> BaseAugmentation:
    """Build base augmentation; the policy acts between its `before` and its `after`."""
    return BaseAugmentation(
        padding=_padding(config, splits.size) if config.crop == "pad" else 0,
        flip=splits.flip if config.flip is None else config.flip,
        cutout=config.cutout,
        mean=splits.mean if config.normalise else None,
        std=splits.std if config.normalise else None,
        seed=seed,
        size=splits.size,
        scale=config.scale if config.crop == "resized" else None,
    )


def _padding(config: AugmentConfig, size: int) -> int:
    # Shifts by 4 pixels would cut off much of a small image, such as a digit.
    return (4 if size >= 32 else 0) if config.padding is None else config.padding


def build_augmentation(
    config: TrainConfig, splits: Splits, device: torch.device
) -> tuple[AugmentationPolicy | None, BaseAugmentation]:
    """Build the policy of a run on its device, ready to draw, and base augmentation."""
    policy = build_policy(config.augment, splits.classes, config.seed)
    base = build_base_augmentation(config.augment, splits, config.seed)
    if policy is not None:
        policy.to(device)
        policy.fused = config.speed.kernels
    if isinstance(policy, ImagePolicy):
        standardise(policy, splits, base)
    return policy, base


def standardise(policy: ImagePolicy, splits: Splits, base_augmentation: BaseAugmentation) -> None:
    """Give a policy per image the statistics of its features, from crops of evenly spaced training images."""
    total = len(splits.train)
    count = min(total, _STATISTICS_IMAGES)
    pixels, _ = splits.train.load([index * total // count for index in range(count)])
    images = base_augmentation.centre(pixels) if base_augmentation.scale is None else pixels
    draw = base_augmentation.sample(images, torch.Generator(images.device).manual_seed(0))
    policy.standardise(base_augmentation.before(images, draw).to(policy.get_buffer("centre").device))
