"""The settings of a run: frozen dataclasses, filled by YAML files and flags, checked when they are made."""

import dataclasses
import os
from typing import Any, Literal

from madao.config.aliases import current_config, current_method
from madao.config.checks import at_least, check_values, fraction
from madao.config.fields import names_without, setting
from madao.config.outer_config import OuterConfig as OuterConfig
from madao.config.typed import names_of, problems
from madao.errors import UserError

FROM_PYTHON = "python"
"""The name in the settings of data, or of a model, that `madao.fit` was given as an object."""

Planted = Literal["rotate", "translate", "shear", "brightness", "invert", "rotate-or-brightness", "by-tone", "none"]


@dataclasses.dataclass(frozen=True)
class DataConfig:
    """The data set.

    Args:
        name: Data set: digits, shapes, folder, masks, webdataset, npz, cifar10, cifar100, svhn, imagenet, flowers102,
            oxford-pets, fgvc-aircraft or stanford-cars. By default folder or masks if `root` is given, else digits.
        root: Folder of the data set, an .npz file, or shards such as 'train-{000..146}.tar'.
        download: Download the data set if it is missing.
        size: Height and width, in pixels, of the images that the model sees. By default the data set's own size, 224
            for image files.
        max_images: Train on at most this many images, in the same class proportions; useful for a first try. By default
            all.
        val_fraction: Fraction of the training images to use as the validation set, if the data set has none. Set 0 to
            train on all of them with a policy that is already learned.
        split_seed: Seed that selects the images for `max_images` and `val_fraction`.
        workers: Number of processes that decode images. By default one per CPU core, at most 4.
        decode: Decoder of images that do not fit into `cache_gib`: workers (processes on the CPU) or gpu (nvJPEG, for
            JPEG files; falls back to workers).
        cache_gib: Keep decoded images in device memory if they need at most this many GiB; else read them during
            training. 0 always reads them during training.
        on_error: Response to a corrupt image: stop, or skip and count it.
        max_pixels: Largest number of pixels of an image to decode. Larger JPEG files are decoded smaller, other larger
            images are skipped and counted.
        shift: Synthetic shift of validation and test images, to see whether the policy finds it. For digits and shapes:
            rotate, translate, shear, brightness, invert or none. For digits also: rotate-or-brightness (rotates 0 to 4,
            changes the brightness of 5 to 9) and by-tone (rotates light digits, changes the brightness of dark ones).
    """

    name: str | None = None
    root: str | None = setting(None, affects_result=False)
    download: bool = False
    size: int | None = None
    max_images: int | None = None
    val_fraction: float = 0.1
    split_seed: int = setting(0, is_option=False)
    workers: int | None = setting(None, affects_result=False)
    decode: Literal["workers", "gpu"] = setting("workers", affects_result=False)
    cache_gib: float = setting(8.0, affects_result=False)
    on_error: Literal["stop", "skip"] = "stop"
    max_pixels: int = setting(178_956_970, is_option=False)
    shift: Planted = "none"

    def __post_init__(self) -> None:
        at_least("data.size", self.size, 1)
        at_least("data.max_images", self.max_images, 1)
        at_least("data.workers", self.workers, 0)
        at_least("data.max_pixels", self.max_pixels, 1)
        at_least("data.cache_gib", self.cache_gib, 0)
        fraction("data.val_fraction", self.val_fraction)
        if self.root is not None:
            object.__setattr__(self, "root", os.path.expanduser(self.root))

    @property
    def processes(self) -> int:
        """Number of processes that decode images."""
        return min(os.cpu_count() or 1, 4) if self.workers is None else self.workers


@dataclasses.dataclass(frozen=True)
class TaskConfig:
    """The task.

    Args:
        name: classification, segmentation (a class for each pixel), or moco (features from images without labels).
        version: MoCo version: v1 (linear projection, temperature 0.07) or v2 (projection with a hidden layer,
            temperature 0.2).
        dimensions: Number of dimensions of MoCo's projection.
        queue: Number of keys in MoCo's queue. Use fewer for small data sets.
        momentum: Fraction of its weights that MoCo's key encoder keeps at each step. Use less for short runs.
        temperature: Temperature of MoCo's contrastive loss. By default that of `version`.
        bn_splits: Number of parts into which MoCo splits a batch for BatchNorm, as if each part were on another device.
        neighbours: Number of training images that vote in the k-nearest-neighbour check of MoCo's features. Small
            classes lower it.
    """

    name: Literal["classification", "segmentation", "moco"] = "classification"
    version: Literal["v1", "v2"] = "v1"
    dimensions: int = setting(128, is_option=False)
    queue: int = 65_536
    momentum: float = 0.999
    temperature: float | None = setting(None, is_option=False)
    bn_splits: int = 1
    neighbours: int = setting(200, is_option=False)

    def __post_init__(self) -> None:
        for name, least in (("dimensions", 2), ("queue", 1), ("bn_splits", 1), ("neighbours", 1)):
            at_least(f"task.{name}", getattr(self, name), least)
        if not 0 <= self.momentum <= 1:
            raise UserError(f"`task.momentum` must lie between 0 and 1, got {self.momentum}")
        if self.temperature is not None and not self.temperature > 0:
            raise UserError(f"`task.temperature` must be above 0, got {self.temperature}")


@dataclasses.dataclass(frozen=True)
class ModelConfig:
    """The model.

    Args:
        name: small-cnn, wrn-28-2, wrn-40-2, wrn-28-10, resnet18, resnet50, or any model of torchvision or timm. For
            segmentation: small-fcn, or a segmentation model of torchvision. By default small-cnn or small-fcn for
            images up to 28 pixels, else resnet18 or fcn_resnet50.
        pretrained: true to start from published weights, or the path of a state dict to start from.
        freeze_norm: Keep the statistics and weights of BatchNorm layers as they are, for a pretrained model and small
            batches.
        stem: First layers of a ResNet: small (made for images up to 64 pixels), imagenet (made for larger ones), or
            auto, which selects by the size.
    """

    name: str | None = None
    pretrained: bool | str = False
    freeze_norm: bool = False
    stem: Literal["auto", "small", "imagenet"] = setting("auto", is_option=False)


@dataclasses.dataclass(frozen=True)
class AugmentConfig:
    """The augmentation of training images.

    Args:
        method: learned (learn the policy during training), base (only crop, flip and Cutout), uniform, randaugment,
            trivialaugment, trivialaugment-normal, autoaugment-cifar10, autoaugment-svhn, autoaugment-imagenet, or the
            path of a policy.json.
        stages: Number of operations applied to each image, one after the other (learned, uniform and randaugment).
        magnitude: Strength of RandAugment's operations, from 0 to 1.
        limits: Largest magnitude of some operations in their own units, as in Rotate=10,ShearX=0.2 (learned and
            uniform). Rotate is in degrees. Set it where a strong operation would change the label.
        exclude: Operations to leave out, as in Invert,Solarize (learned and uniform).
        conditional_on: Input of a learned policy: none (one policy for all images), class (one for each class), or
            image (one for each image, predicted from it). class and image also learn a shared part.
        magnitude_jitter: Random variation of magnitudes (learned and uniform): 0 always applies the magnitude itself
            (the paper), 1 draws from all values up to it.
        init_magnitude: Magnitude, between 0 and 1, that operations start with (learned) or always have (uniform). By
            default 0.62, as in the paper. Set 0.1 to start gently.
        shrinkage: Strength with which the policies of classes or images are pulled towards their shared part; 0 for no
            pull.
        crop: Base crop: pad (shift by up to `padding` pixels), resized (random part of the image, rescaled), or none.
        padding: Largest shift of the crop pad, in pixels. By default 4, but 0 for images below 32 pixels.
        scale: Smallest fraction of the image area that the crop resized keeps.
        flip: Mirror half of the images. By default true, except for data sets where mirroring changes the label.
        cutout: Side of the square that Cutout erases, in pixels; 0 for no Cutout.
        normalise: Normalise the model's input to mean 0 and standard deviation 1 per channel. Otherwise it is in
            [0, 1].
        statistics: Images whose mean and standard deviation normalise the input: data (the training images) or
            pretrained (those that the model's published weights expect). By default pretrained if `model.pretrained`
            is set and the model has published weights.
    """

    method: str = "learned"
    stages: int = 2
    magnitude: float = 0.3
    limits: dict[str, float] = dataclasses.field(default_factory=dict)
    exclude: list[str] = dataclasses.field(default_factory=list)
    conditional_on: Literal["none", "class", "image"] = "none"
    magnitude_jitter: float = setting(0.0, is_option=False)
    init_magnitude: float | None = None
    shrinkage: float = setting(0.1, is_option=False)
    crop: Literal["pad", "resized", "none"] = "pad"
    padding: int | None = setting(None, is_option=False)
    scale: float = setting(0.08, is_option=False)
    flip: bool | None = None
    cutout: int = 0
    normalise: bool = setting(True, is_option=False)
    statistics: Literal["data", "pretrained"] | None = setting(None, is_option=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "method", current_method(self.method))
        at_least("augment.stages", self.stages, 1)
        at_least("augment.shrinkage", self.shrinkage, 0)
        if self.conditional_on != "none" and self.method != "learned":
            raise UserError(f"`augment.conditional_on` needs `augment.method=learned`, got {self.method}")
        at_least("augment.padding", self.padding, 0)
        at_least("augment.cutout", self.cutout, 0)
        for name in ("magnitude", "magnitude_jitter"):
            if not 0 <= getattr(self, name) <= 1:
                raise UserError(f"`augment.{name}` must lie in [0, 1], got {getattr(self, name)}")
        if self.init_magnitude is not None and not 0 < self.init_magnitude < 1:
            raise UserError(f"`augment.init_magnitude` must lie between 0 and 1, got {self.init_magnitude}")
        if not 0 < self.scale <= 1:
            raise UserError(f"`augment.scale` must be above 0 and at most 1, got {self.scale}")


@dataclasses.dataclass(frozen=True)
class OptimizerConfig:
    """The optimizer of the model.

    Args:
        name: Optimizer of the model: sgd (with momentum) or adamw, which suits pretrained transformers.
        lr: Initial learning rate of the model. Lower it if the loss stays high or is not finite.
        head_lr_scale: Factor by which the learning rate of the last layer is larger, for example 10 for a new head on a
            pretrained model.
        momentum: Momentum of sgd.
        nesterov: Use Nesterov momentum.
        weight_decay: Weight decay of all parameters.
        schedule: Learning rate schedule: cosine, step (divides by 10 at each of `milestones`) or constant.
        warmup: Number of epochs in which the learning rate rises linearly from zero.
        milestones: Epochs at which the schedule step divides the learning rate by 10.
        restart: Length of the first cosine cycle in epochs; the schedule restarts after each cycle. By default one
            cycle spans the run.
        restart_factor: Factor by which each cosine cycle is longer than the one before.
        label_smoothing: Label smoothing of the training loss.
        clip: Largest norm of the gradient; longer gradients are scaled down to it. By default no limit.
    """

    name: Literal["sgd", "adamw"] = "sgd"
    lr: float = 0.1
    head_lr_scale: float = 1.0
    momentum: float = setting(0.9, is_option=False)
    nesterov: bool = setting(False, is_option=False)
    weight_decay: float = 5e-4
    schedule: Literal["cosine", "step", "constant"] = setting("cosine", is_option=False)
    warmup: float = 0.0
    milestones: list[float] = dataclasses.field(default_factory=list, metadata={"is_option": False})
    restart: float | None = setting(None, is_option=False)
    restart_factor: float = setting(1.0, is_option=False)
    label_smoothing: float = setting(0.0, is_option=False)
    clip: float | None = None

    def __post_init__(self) -> None:
        for name, least in (("lr", 0), ("momentum", 0), ("weight_decay", 0), ("warmup", 0), ("restart_factor", 1)):
            at_least(f"optimizer.{name}", getattr(self, name), least)
        fraction("optimizer.label_smoothing", self.label_smoothing)
        for name in ("restart", "clip", "head_lr_scale"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise UserError(f"`optimizer.{name}` must be above 0, got {value}")
        if self.nesterov and not self.momentum:
            raise UserError("`optimizer.nesterov` needs `optimizer.momentum` above 0")
        if self.milestones and self.schedule != "step":
            raise UserError(f"`optimizer.milestones` needs `optimizer.schedule=step`, got {self.schedule}")


@dataclasses.dataclass(frozen=True)
class SpeedConfig:
    """Speed on a GPU. The CPU ignores these settings.

    Args:
        kernels: Apply the policy with fused kernels instead of one operation after the other.
        graph: Record training steps and outer steps as CUDA graphs, which removes the cost of launching kernels.
        compile: Compile the model and the outer step with torch.compile. Compilation takes one to two minutes; steps
            are faster afterwards. By default true for runs of at least 10,000 steps.
        benchmark: Let cuDNN time its convolutions and select the fastest. Two runs with the same seed may then differ
            by rounding.
    """

    kernels: bool = setting(True, is_option=False, affects_result=False)
    graph: bool = setting(True, is_option=False, affects_result=False)
    compile: bool | None = setting(None, affects_result=False)
    benchmark: bool = setting(False, is_option=False, affects_result=False)


@dataclasses.dataclass(frozen=True)
class TrainConfig:
    """The settings of a run.

    Args:
        data: Data set, validation set and image loading.
        task: Classification, segmentation or MoCo.
        model: Model and its initial weights.
        augment: Augmentation method and base augmentation.
        optimizer: Optimizer of the model.
        outer: Learning of the policy.
        speed: Speed on a GPU.
        epochs: Number of passes over the training images.
        batch_size: Images in each training step, over all devices.
        accumulate: Number of parts in which each batch passes through the model. Raise it if a batch does not fit into
            memory.
        precision: Precision of forward passes: 32, tf32, bf16, or auto (bf16 on GPUs that support it, else 32).
        ema: Decay of an exponential moving average of the weights, which is evaluated in their place; 0 for none.
        eval_checkpoint: Weights that are evaluated on the test set: last (last epoch) or best (best on the validation
            set).
        evaluate_every: Number of epochs between evaluations on the validation set.
        checkpoint_every: Number of epochs between checkpoints. Raise it if an epoch takes only seconds. The best epoch
            is always saved; resuming from an earlier checkpoint may select a different best.
        checkpoint_minutes: Longest time between checkpoints, in minutes.
        logger: Service that shows the numbers of each epoch: tensorboard, wandb, mlflow or none.
        device: Device to train on: auto (a GPU if there is one), cpu, cuda, or a single GPU such as cuda:1.
        devices: Number of devices on this machine that share each batch, one process each. torchrun overrides it.
        num_nodes: Number of machines. torchrun overrides it.
        sync_batch_norm: Compute BatchNorm statistics over all devices instead of over the images of each device.
        seed: Seed of weights, augmentation and the order of images.
        out: Run directory. By default runs/DATA-MODEL-METHOD-SEED.
        resume: Resume the run in `out`. If there is none, start it, provided that settings say what to train.
    """

    data: DataConfig = dataclasses.field(default_factory=DataConfig)
    task: TaskConfig = dataclasses.field(default_factory=TaskConfig)
    model: ModelConfig = dataclasses.field(default_factory=ModelConfig)
    augment: AugmentConfig = dataclasses.field(default_factory=AugmentConfig)
    optimizer: OptimizerConfig = dataclasses.field(default_factory=OptimizerConfig)
    outer: OuterConfig = dataclasses.field(default_factory=OuterConfig)
    speed: SpeedConfig = dataclasses.field(default_factory=SpeedConfig)
    epochs: int = 30
    batch_size: int = 128
    accumulate: int = 1
    precision: Literal["auto", "32", "tf32", "bf16"] = "auto"
    ema: float = setting(0.0, is_option=False)
    eval_checkpoint: Literal["last", "best"] = setting("last", is_option=False)
    evaluate_every: int = 1
    checkpoint_every: int = setting(1, affects_result=False)
    checkpoint_minutes: float = setting(10.0, is_option=False, affects_result=False)
    logger: Literal["tensorboard", "wandb", "mlflow", "none"] = setting("tensorboard", affects_result=False)
    device: str = setting("auto", affects_result=False)
    devices: int = setting(1, affects_result=False)
    num_nodes: int = setting(1, is_option=False, affects_result=False)
    sync_batch_norm: bool = setting(False, is_option=False)
    seed: int = 0
    out: str | None = setting(None, affects_result=False)
    resume: bool = setting(False, affects_result=False)

    def __post_init__(self) -> None:
        counts = ("epochs", "batch_size", "accumulate", "evaluate_every", "checkpoint_every", "devices", "num_nodes")
        for name in counts:
            at_least(name, getattr(self, name), 1)
        at_least("checkpoint_minutes", self.checkpoint_minutes, 0)
        fraction("ema", self.ema)
        check_values(self)
        if self.out is not None:
            object.__setattr__(self, "out", os.path.expanduser(self.out))
        if self.sync_batch_norm and self.task.name == "moco":
            raise UserError(
                "`sync_batch_norm` does not work with `task.name=moco`: keys must not share statistics with queries"
            )
        if self.batch_size % self.accumulate:
            raise UserError(f"`accumulate` must divide `batch_size`, got {self.accumulate} and {self.batch_size}")


Plain = dict[str, Any]


def to_dict(config: TrainConfig) -> Plain:
    """Return the configuration as dictionaries, lists and numbers."""
    return dataclasses.asdict(config)


def from_dict(plain: Plain) -> TrainConfig:
    """Return the configuration that dictionaries, lists and numbers describe; missing settings have their defaults."""
    plain = current_config(plain)
    for problem in problems(plain, SETTINGS):
        raise UserError(f"these settings are damaged, or were written by another version of madao: {problem}")
    parts = {"data": DataConfig, "task": TaskConfig, "model": ModelConfig, "augment": AugmentConfig}
    parts |= {"optimizer": OptimizerConfig, "outer": OuterConfig, "speed": SpeedConfig}
    return TrainConfig(**{key: parts[key](**value) if key in parts else value for key, value in plain.items()})


SETTINGS = names_of(TrainConfig)
"""The settings by name: those of a section as a dictionary, the type of others."""


NOT_OPTIONS = frozenset(names_without("is_option", TrainConfig))
"""Settings for experiments on the method, which have no flag; see `madao.config.fields.setting`."""

_FREE = frozenset(names_without("affects_result", TrainConfig))


def free_settings(on_error: str = "stop") -> frozenset[str]:
    """Return the dotted names of the settings that do not affect a result.

    Args:
        on_error: The setting `data.on_error`. With `skip`, `data.cache_gib` affects the result: skipped images change
            the order of the others only if all images are decoded before training.
    """
    return _FREE if on_error == "stop" else _FREE - {"data.cache_gib"}
