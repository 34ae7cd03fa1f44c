"""What a run is: small frozen objects, filled by YAML and flags, checked as soon as they exist."""

import dataclasses
import os
from typing import Any, Literal

from madao.config.aliases import current_config, current_method
from madao.config.checks import at_least, fraction
from madao.config.fields import names_without, setting
from madao.config.outer_config import OuterConfig as OuterConfig
from madao.errors import UserError

Planted = Literal["rotate", "translate", "shear", "brightness", "invert", "rotate-or-brightness", "by-tone", "none"]


@dataclasses.dataclass(frozen=True)
class DataConfig:
    """Where images come from.

    Args:
        name: digits, shapes, folder, masks, webdataset, npz, cifar10, cifar100, svhn, imagenet, flowers102,
            oxford-pets, fgvc-aircraft or stanford-cars. By default folder or masks where a root is given, digits
            otherwise.
        root: The folder that holds the data set, the .npz file, or shards as in 'train-{000..146}.tar'.
        download: Fetch the data set if it is not there.
        size: Side of what the model sees. By default the data set's own; 224 for files.
        max_images: Use at most so many of the training images, of each class its share. By default all.
        val_fraction: Part of the training images set aside to choose by, where the data set has no such split. 0 to
            train on all of them, with a policy that is learned already; not where the data set has one.
        split_seed: Which images are used and set aside.
        workers: Processes that decode images. By default one a core, at most four.
        decode: Who decodes images that are read while training: workers, or gpu (JPEG files, by nvJPEG, so that
            workers only read; where it cannot, workers do).
        cache_gib: Decoded images live on the device if they take at most so many GiB; otherwise workers read them.
        on_error: What a corrupt image does: stop, or be counted and skipped.
        shift: Of digits and shapes: rotate, translate, shear, brightness, invert or none, a shift of validation and
            test images. Of digits: rotate-or-brightness, which rotates 0 to 4 and brightens or darkens 5 to 9, and
            by-tone, which rotates light digits and brightens or darkens dark ones.
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
    shift: Planted = "none"

    def __post_init__(self) -> None:
        at_least("data.size", self.size, 1)
        at_least("data.max_images", self.max_images, 1)
        at_least("data.workers", self.workers, 0)
        at_least("data.cache_gib", self.cache_gib, 0)
        fraction("data.val_fraction", self.val_fraction)

    @property
    def processes(self) -> int:
        """How many processes decode images."""
        return min(os.cpu_count() or 1, 4) if self.workers is None else self.workers


@dataclasses.dataclass(frozen=True)
class TaskConfig:
    """What is learned.

    Args:
        name: classification, segmentation (a class for each pixel), or moco (features, from images without labels).
        version: Of moco: v1 (a linear projection, temperature 0.07) or v2 (a hidden layer in it, temperature 0.2).
        dimensions: Of moco's projection.
        queue: Keys that moco compares with.
        momentum: How much of its weights the key encoder keeps at a step.
        temperature: Of the contrastive loss. By default that of the version.
        bn_splits: Parts of moco's batch that have a BatchNorm of their own, as if each were on a device of its own.
        neighbours: Training images that vote in the k-nearest-neighbour check; fewer where classes have fewer.
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
    """What is trained.

    Args:
        name: small-cnn, wrn-28-2, wrn-40-2, wrn-28-10, resnet18, resnet50, or any name of torchvision or timm;
            small-fcn, or one of torchvision's, for segmentation. By default small-cnn or small-fcn for images up to 28
            pixels, resnet18 or fcn_resnet50 above.
        pretrained: Start from published weights (true), or from a state dict (its path).
        stem: How a resnet begins: small for images up to 64 pixels, imagenet above.
    """

    name: str | None = None
    pretrained: bool | str = False
    stem: Literal["auto", "small", "imagenet"] = setting("auto", is_option=False)


@dataclasses.dataclass(frozen=True)
class AugmentConfig:
    """How training images are varied.

    Args:
        method: learned (while training), base (crop, flip and Cutout only), uniform, randaugment,
            trivialaugment, trivialaugment-normal, autoaugment-cifar10, autoaugment-svhn, autoaugment-imagenet, or the
            path of a policy.json.
        stages: Operations in a row, of learned, uniform and randaugment.
        magnitude: Of randaugment, in [0, 1].
        limits: The strongest value of some operations in real units, for learned and uniform: {Rotate: 10}.
        exclude: Operations to leave out, for learned and uniform.
        conditional_on: What a learned policy depends on: none; class, a policy for each class with a part they share;
            or image, a policy for each image by what it shows.
        magnitude_jitter: How much weaker than its magnitude an operation of learned and uniform may be drawn: 0 for
            always as strong (the paper's), 1 for anything up to it.
        init_magnitude: Magnitude that operations of learned begin with and those of uniform have, between 0 and 1. By
            default the paper's, 0.62; 0.1 for a gentle start.
        shrinkage: How strongly the policy of each class or image is held to what they share; 0 for not at all.
        crop: Standard crop: pad (shifted by up to `padding` pixels), resized (a random part, scaled), none.
        padding: Pixels of the shift.
        scale: Smallest part of the image that a resized crop keeps.
        flip: Mirror half of the images. By default where the data set allows it.
        cutout: Side of the hole, in pixels; 0 for none.
        normalise: Give the model images of mean 0 and deviation 1 per channel, rather than in [0, 1].
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
    padding: int = setting(4, is_option=False)
    scale: float = 0.08
    flip: bool | None = None
    cutout: int = 0
    normalise: bool = setting(True, is_option=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "method", current_method(self.method))
        at_least("augment.stages", self.stages, 1)
        at_least("augment.shrinkage", self.shrinkage, 0)
        if self.conditional_on != "none" and self.method != "learned":
            raise UserError(f"`augment.conditional_on` belongs to the method learned, got {self.method}")
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
    """How weights are trained: SGD with momentum.

    Args:
        lr: Learning rate at the start.
        momentum: Of SGD.
        nesterov: Nesterov's momentum.
        weight_decay: On every parameter.
        schedule: cosine, step or constant.
        warmup: Epochs in which the learning rate rises from zero.
        milestones: Epochs at which the step schedule divides by ten.
        restart: Epochs of the cosine's first cycle, after which it starts anew. By default one cycle.
        restart_factor: How much longer each cycle is than the one before.
        label_smoothing: Of the training loss.
        clip: Longest gradient that is used as it is. By default any.
    """

    lr: float = 0.1
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
        for name in ("restart", "clip"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise UserError(f"`optimizer.{name}` must be above 0, got {value}")
        if self.nesterov and not self.momentum:
            raise UserError("`optimizer.nesterov` needs `optimizer.momentum` above 0")
        if self.milestones and self.schedule != "step":
            raise UserError(f"`optimizer.milestones` belong to the schedule step, got {self.schedule}")


@dataclasses.dataclass(frozen=True)
class SpeedConfig:
    """What makes training on a GPU fast. On the CPU none of it matters.

    Args:
        kernels: Apply the policy by fused kernels rather than operation by operation.
        graph: Record inner and outer steps as CUDA graphs, which spares the host its launches.
        compile: Compile the model, and the outer step, by torch.compile: takes a minute or two, then steps are faster
            still. By default for runs of at least 10,000 steps.
        benchmark: Let cuDNN time its convolutions and take the fastest, where it would guess. Runs of one seed may then
            differ by rounding.
    """

    kernels: bool = setting(True, is_option=False, affects_result=False)
    graph: bool = setting(True, is_option=False, affects_result=False)
    compile: bool | None = setting(None, affects_result=False)
    benchmark: bool = setting(False, is_option=False, affects_result=False)


@dataclasses.dataclass(frozen=True)
class TrainConfig:
    """One run.

    Args:
        data: Where images come from.
        task: What is learned.
        model: What is trained.
        augment: How training images are varied.
        optimizer: How weights are trained.
        outer: How the policy learns.
        speed: What makes it fast on a GPU.
        epochs: Passes over the training images.
        batch_size: Images in one step of the optimizer.
        accumulate: Parts in which a batch passes through the model, to save memory.
        precision: 32, tf32, bf16, or auto: bf16 on a GPU that has it, 32 elsewhere.
        ema: Decay of an average of the weights that is evaluated in their place; 0 for none.
        eval_checkpoint: Weights the test set sees: those of the last epoch, or the best on validation images.
        evaluate_every: Epochs between two evaluations on validation images.
        checkpoint_every: Epochs between two checkpoints, for epochs shorter than the writing. What is best on
            validation images so far has one in any case: resumed before it, a run may have another best.
        checkpoint_minutes: Longest time between two checkpoints.
        tensorboard: Write TensorBoard events.
        device: auto, cpu, cuda, or cuda:1.
        devices: Devices of this machine to share every batch, a process each. torchrun may start them instead.
        num_nodes: Machines.
        sync_batch_norm: Take the statistics of BatchNorm over all devices rather than over each one's images.
        seed: Weights, draws and the order of images.
        out: The run directory. By default runs/DATA-MODEL-METHOD-SEED.
        resume: Go on with the run in `out`. Where there is none, it begins if settings say what to train.
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
    tensorboard: bool = setting(True, affects_result=False)
    device: str = setting("auto", affects_result=False)
    devices: int = setting(1, affects_result=False)
    num_nodes: int = setting(1, affects_result=False)
    sync_batch_norm: bool = False
    seed: int = 0
    out: str | None = setting(None, affects_result=False)
    resume: bool = setting(False, affects_result=False)

    def __post_init__(self) -> None:
        counts = ("epochs", "batch_size", "accumulate", "evaluate_every", "checkpoint_every", "devices", "num_nodes")
        for name in counts:
            at_least(name, getattr(self, name), 1)
        at_least("checkpoint_minutes", self.checkpoint_minutes, 0)
        fraction("ema", self.ema)
        if not abs(self.seed) < 2**62:
            raise UserError(f"`seed` must be below 2^62, got {self.seed}")
        if self.sync_batch_norm and self.task.name == "moco":
            raise UserError(
                "`sync_batch_norm` does not go with moco, whose keys must not share statistics with queries"
            )
        if self.batch_size % self.accumulate:
            raise UserError(f"`accumulate` must divide `batch_size`, got {self.accumulate} and {self.batch_size}")


Plain = dict[str, Any]


def to_dict(config: TrainConfig) -> Plain:
    """The configuration as dictionaries, lists and numbers."""
    return dataclasses.asdict(config)


def from_dict(plain: Plain) -> TrainConfig:
    """The configuration from dictionaries, lists and numbers; settings that are not there have their defaults."""
    plain = current_config(plain)
    parts = {"data": DataConfig, "task": TaskConfig, "model": ModelConfig, "augment": AugmentConfig}
    parts |= {"optimizer": OptimizerConfig, "outer": OuterConfig, "speed": SpeedConfig}
    try:
        return TrainConfig(**{key: parts[key](**value) if key in parts else value for key, value in plain.items()})
    except TypeError as error:
        raise UserError(f"these settings are of another version of madao: {error}") from None


NOT_OPTIONS = frozenset(names_without("is_option", TrainConfig))
"""Settings that YAML files and Python have, and the command line has not."""

_FREE = frozenset(names_without("affects_result", TrainConfig))


def free_settings(on_error: str = "stop") -> frozenset[str]:
    """Return the dotted names of the settings that do not affect a result.

    Args:
        on_error: `data.on_error`. Corrupt images that are skipped leave another order where all images are decoded
            at once, so that `data.cache_gib` counts there.
    """
    return _FREE if on_error == "stop" else _FREE - {"data.cache_gib"}
