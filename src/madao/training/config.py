"""What a run is: small frozen objects, filled by YAML and flags, checked as soon as they exist."""

import dataclasses
import os
from typing import Any, Literal

from madao.training.errors import UserError

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
        validation: Part of the training images set aside to choose by, where the data set has no such split.
        split_seed: Which images are set aside.
        workers: Processes that decode images. By default one a core, at most four.
        decode: Who decodes images that are read while training: workers, or gpu (JPEG files, by nvJPEG, so that
            workers only read; where it cannot, workers do).
        memory: Decoded images live on the device if they take at most so many GiB; otherwise workers read them.
        on_error: What a corrupt image does: stop, or be counted and skipped.
        planted: Of digits and shapes: rotate, translate, shear, brightness, invert or none, a shift of validation and
            test images. Of digits: rotate-or-brightness, which rotates 0 to 4 and brightens or darkens 5 to 9, and
            by-tone, which rotates light digits and brightens or darkens dark ones.
    """

    name: str | None = None
    root: str | None = None
    download: bool = False
    size: int | None = None
    validation: float = 0.1
    split_seed: int = 0
    workers: int | None = None
    decode: Literal["workers", "gpu"] = "workers"
    memory: float = 8.0
    on_error: Literal["stop", "skip"] = "stop"
    planted: Planted = "none"

    def __post_init__(self) -> None:
        _at_least("data.size", self.size, 1)
        _at_least("data.workers", self.workers, 0)
        _at_least("data.memory", self.memory, 0)
        if not 0 < self.validation < 1:
            raise UserError(f"--data.validation must lie between 0 and 1, got {self.validation}")

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
        splits: Parts of moco's batch that have a BatchNorm of their own, as if each were on a device of its own.
        neighbours: Training images that vote in the k-nearest-neighbour check; fewer where classes have fewer.
    """

    name: Literal["classification", "segmentation", "moco"] = "classification"
    version: Literal["v1", "v2"] = "v1"
    dimensions: int = 128
    queue: int = 65_536
    momentum: float = 0.999
    temperature: float | None = None
    splits: int = 1
    neighbours: int = 200

    def __post_init__(self) -> None:
        for name, least in (("dimensions", 2), ("queue", 1), ("splits", 1), ("neighbours", 1)):
            _at_least(f"task.{name}", getattr(self, name), least)
        if not 0 <= self.momentum <= 1:
            raise UserError(f"--task.momentum must lie between 0 and 1, got {self.momentum}")
        if self.temperature is not None and not self.temperature > 0:
            raise UserError(f"--task.temperature must be above 0, got {self.temperature}")


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
    stem: Literal["auto", "small", "imagenet"] = "auto"


@dataclasses.dataclass(frozen=True)
class AugmentConfig:
    """How training images are varied.

    Args:
        method: madao (learned while training), standard (crop, flip, Cutout only), uniform, randaugment,
            trivialaugment, trivialaugment-normal, autoaugment-cifar10, autoaugment-svhn, autoaugment-imagenet, or the
            path of a policy.json.
        stages: Operations in a row, of madao, uniform and randaugment.
        magnitude: Of randaugment, in [0, 1].
        limits: The strongest value of some operations in real units, for madao and uniform: {Rotate: 10}.
        without: Operations to leave out, for madao and uniform.
        condition: What the policy of madao depends on: none; class, a policy for each class with a part they share;
            or image, a policy for each image by what it shows.
        shrinkage: How strongly the policy of each class or image is held to what they share; 0 for not at all.
        crop: Standard crop: pad (shifted by up to `padding` pixels), resized (a random part, scaled), none.
        padding: Pixels of the shift.
        scale: Smallest part of the image that a resized crop keeps.
        flip: Mirror half of the images. By default where the data set allows it.
        cutout: Side of the hole, in pixels; 0 for none.
        normalise: Give the model images of mean 0 and deviation 1 per channel, rather than in [0, 1].
    """

    method: str = "madao"
    stages: int = 2
    magnitude: float = 0.3
    limits: dict[str, float] = dataclasses.field(default_factory=dict)
    without: list[str] = dataclasses.field(default_factory=list)
    condition: Literal["none", "class", "image"] = "none"
    shrinkage: float = 0.1
    crop: Literal["pad", "resized", "none"] = "pad"
    padding: int = 4
    scale: float = 0.08
    flip: bool | None = None
    cutout: int = 0
    normalise: bool = True

    def __post_init__(self) -> None:
        _at_least("augment.stages", self.stages, 1)
        _at_least("augment.shrinkage", self.shrinkage, 0)
        if self.condition != "none" and self.method != "madao":
            raise UserError(f"--augment.condition belongs to the method madao, got {self.method}")
        _at_least("augment.padding", self.padding, 0)
        _at_least("augment.cutout", self.cutout, 0)
        if not 0 <= self.magnitude <= 1:
            raise UserError(f"--augment.magnitude must lie in [0, 1], got {self.magnitude}")
        if not 0 < self.scale <= 1:
            raise UserError(f"--augment.scale must be above 0 and at most 1, got {self.scale}")


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
    momentum: float = 0.9
    nesterov: bool = False
    weight_decay: float = 5e-4
    schedule: Literal["cosine", "step", "constant"] = "cosine"
    warmup: float = 0.0
    milestones: list[float] = dataclasses.field(default_factory=list)
    restart: float | None = None
    restart_factor: float = 1.0
    label_smoothing: float = 0.0
    clip: float | None = None

    def __post_init__(self) -> None:
        for name, least in (("lr", 0), ("momentum", 0), ("weight_decay", 0), ("warmup", 0), ("restart_factor", 1)):
            _at_least(f"optimizer.{name}", getattr(self, name), least)
        _fraction("optimizer.label_smoothing", self.label_smoothing)
        for name in ("restart", "clip"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise UserError(f"--optimizer.{name} must be above 0, got {value}")
        if self.nesterov and not self.momentum:
            raise UserError("--optimizer.nesterov needs --optimizer.momentum above 0")
        if self.milestones and self.schedule != "step":
            raise UserError(f"--optimizer.milestones belong to the schedule step, got {self.schedule}")


@dataclasses.dataclass(frozen=True)
class OuterConfig:
    """How the policy learns, with the method madao.

    Args:
        estimator: influence (per-image influence, score function) or relaxed (the paper's).
        solver: How the inverse Hessian is applied: deflated (by the space of recent training gradients, without
            products), gauss-newton (by some steps of conjugate gradients), neumann (the paper's series), identity
            (none).
        baseline: What influences are compared with: leave-one-out, class-mean, or unaugmented (one more pass).
        mode: The model's mode in the training loss of outer steps: eval, or train (the paper's).
        every: Inner steps between two outer steps, s of the paper.
        warmup: Epochs before the first outer step, w of the paper. By default a fifth of all.
        warmup_augment: During warm-up, train with the policy as it starts (policy, the paper's appendix) or without
            it (none, the paper's text), after which operations look good that are merely new.
        optimizer: adam (without momentum: RMSprop whose first steps are no longer than the others) or rmsprop (the
            paper's).
        lr: Learning rate of the policy.
        decay: Lower it along a cosine to zero at the end.
        batch_size: Validation images in one outer step. By default the training batch size.
        train_batch_size: Training images in one outer step. By default the batch that was just trained on.
        curvature_batch_size: Of those, how many curvature is taken over, or the gradient that the deflated solver takes
            out. By default all.
        pathwise_batch_size: With influence: of those, how many the magnitudes' derivative is taken over; the others are
            only scored, which takes less time and memory. By default a quarter, at least 32; in mode train, where
            images of a batch depend on each other, all.
        steps: Terms of the Neumann series, J of the paper; steps of conjugate gradients, where 10 are better.
        tolerance: Part of the Neumann series for which high powers of the Hessian are left out, as measured at every
            tenth outer step; 0 for none.
        scale: Step of the Neumann series; a mere factor for the others.
        damping: How much the deflated solver leaves of what lies along training gradients, and gauss-newton of what
            lies along large curvature.
        memory: Training gradients that the deflated solver remembers, each half as large as the model, in checkpoints
            too.
        learn: all (which operations, how often and how strongly), or selection (which; the rest stays as it starts).
        sign: descent, or random: a control that goes up or down the gradient by a fair coin, as far as learning would.
        average: Take outer steps at weights averaged from outer step to outer step by this decay, 0.9 say, which see
            further than those of the moment; 0 for the weights of the moment.
        clip: Longest gradient of the policy that is used as it is. By default any.
        microbatch: Most images in one pass of the outer step, to save memory. By default all.
    """

    estimator: Literal["influence", "relaxed"] = "influence"
    solver: Literal["deflated", "gauss-newton", "neumann", "identity"] = "deflated"
    baseline: Literal["leave-one-out", "class-mean", "unaugmented"] = "leave-one-out"
    mode: Literal["eval", "train"] = "eval"
    every: int = 10
    warmup: float | None = None
    warmup_augment: Literal["none", "policy"] = "policy"
    optimizer: Literal["adam", "rmsprop"] = "adam"
    lr: float = 0.03
    decay: bool = False
    batch_size: int | None = None
    train_batch_size: int | None = None
    curvature_batch_size: int | None = None
    pathwise_batch_size: int | None = None
    steps: int = 5
    tolerance: float = 0.01
    scale: float = 0.1
    damping: float = 0.01
    memory: int = 16
    learn: Literal["all", "selection"] = "all"
    sign: Literal["descent", "random"] = "descent"
    average: float = 0.0
    clip: float | None = None
    microbatch: int | None = None

    def __post_init__(self) -> None:
        for name in ("every", "batch_size", "train_batch_size", "microbatch", "memory"):
            _at_least(f"outer.{name}", getattr(self, name), 1)
        for name in ("curvature_batch_size", "pathwise_batch_size"):
            _at_least(f"outer.{name}", getattr(self, name), 1)
        for name in ("warmup", "lr", "steps"):
            _at_least(f"outer.{name}", getattr(self, name), 0)
        if self.solver == "gauss-newton":
            _at_least("outer.steps", self.steps, 1)
        _fraction("outer.tolerance", self.tolerance)
        _fraction("outer.average", self.average)
        for name in ("scale", "damping", "clip"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise UserError(f"--outer.{name} must be above 0, got {value}")


@dataclasses.dataclass(frozen=True)
class SpeedConfig:
    """What makes training on a GPU fast. On the CPU none of it matters.

    Args:
        kernels: Apply the policy by fused kernels rather than operation by operation.
        graph: Record inner and outer steps as CUDA graphs, which spares the host its launches.
        compile: Compile the model, and the outer step, by torch.compile: takes a minute or two, then steps are faster
            still. By default for runs of at least 10,000 steps.
    """

    kernels: bool = True
    graph: bool = True
    compile: bool | None = None


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
        test_with: Weights the test set sees: those of the last epoch, or the best on validation images.
        evaluate_every: Epochs between two evaluations on validation images.
        checkpoint_minutes: Longest time between two checkpoints within an epoch; every epoch ends with one.
        tensorboard: Write TensorBoard events.
        device: auto, cpu, cuda, or cuda:1.
        devices: Devices of this machine to share every batch, a process each. torchrun may start them instead.
        num_nodes: Machines.
        sync_batch_norm: Take the statistics of BatchNorm over all devices rather than over each one's images.
        seed: Weights, draws and the order of images.
        out: The run directory. By default runs/DATA-MODEL-METHOD-SEED.
        resume: Go on with the run in `out`, if there is one.
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
    ema: float = 0.0
    test_with: Literal["last", "best"] = "last"
    evaluate_every: int = 1
    checkpoint_minutes: float = 10.0
    tensorboard: bool = True
    device: str = "auto"
    devices: int = 1
    num_nodes: int = 1
    sync_batch_norm: bool = False
    seed: int = 0
    out: str | None = None
    resume: bool = False

    def __post_init__(self) -> None:
        for name in ("epochs", "batch_size", "accumulate", "evaluate_every", "devices", "num_nodes"):
            _at_least(name, getattr(self, name), 1)
        _at_least("checkpoint_minutes", self.checkpoint_minutes, 0)
        _fraction("ema", self.ema)
        if not abs(self.seed) < 2**62:
            raise UserError(f"--seed must be below 2^62, got {self.seed}")
        if self.sync_batch_norm and self.task.name == "moco":
            raise UserError(
                "--sync_batch_norm does not go with moco, whose keys must not share statistics with queries"
            )
        if self.batch_size % self.accumulate:
            raise UserError(f"--accumulate must divide --batch_size, got {self.accumulate} and {self.batch_size}")


Plain = dict[str, Any]


def as_plain(config: TrainConfig) -> Plain:
    """The configuration as dictionaries, lists and numbers."""
    return dataclasses.asdict(config)


def _at_least(name: str, value: float | None, least: float) -> None:
    # Negated, so that NaN is refused too.
    if value is not None and not value >= least:
        raise UserError(f"--{name} must be at least {least}, got {value}")


def _fraction(name: str, value: float) -> None:
    if not 0 <= value < 1:
        raise UserError(f"--{name} must be at least 0 and below 1, got {value}")


def from_plain(plain: Plain) -> TrainConfig:
    """The configuration from dictionaries, lists and numbers; settings that are not there have their defaults."""
    parts = {"data": DataConfig, "task": TaskConfig, "model": ModelConfig, "augment": AugmentConfig}
    parts |= {"optimizer": OptimizerConfig, "outer": OuterConfig, "speed": SpeedConfig}
    try:
        return TrainConfig(**{key: parts[key](**value) if key in parts else value for key, value in plain.items()})
    except TypeError as error:
        raise UserError(f"these settings are of another version of madao: {error}") from None
