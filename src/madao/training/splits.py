"""The images of a run: loaded, split, and moved to the device of training."""

import dataclasses
from collections.abc import Collection, Mapping
from pathlib import Path

import torch
from torch import Tensor

from madao.config.train_config import FROM_PYTHON, DataConfig
from madao.data import (
    DATASETS,
    Dataset,
    DatasetRequest,
    GpuDecodedImages,
    Images,
    InMemoryImages,
    LazyImages,
    check_classes,
    mean_and_std,
    stratified,
    stratified_subset,
)
from madao.data.datasets.folder import holds_classes
from madao.data.datasets.masks import is_mask_folder
from madao.data.decoding import gpu_decode_error
from madao.data.lazy_images import SkippedImage
from madao.data.split import missing_classes
from madao.errors import DataError, DatasetNotFoundError, UserError
from madao.text import counted, nearest
from madao.training.fingerprint import digest_labels, digest_order

_OWN_SIZE = ("cifar10", "cifar100", "svhn", "npz", "digits", "shapes")
"""Data sets whose images have one size: the model sees them whole."""
SKIPPED_FILE = "skipped.csv"
"""The file of a run that lists images that were left out."""
_FILE_SIZE = 224
_PROBED = 16
"""Number of images of a split that are read before training if it does not fit into memory."""
_CANVAS = 256 / 224
"""Stored size of image files over the size that the model sees, as usual, so that crops differ."""


@dataclasses.dataclass(frozen=True, eq=False)
class Splits:
    """The images of a run.

    Attributes:
        name: The name of the data set.
        classes: The names of the classes.
        train: The training images.
        validation: The images that the policy learns from and that choose the best checkpoint; None without them.
        test: The images that are evaluated once, at the end, if there are any.
        flip: Whether a mirrored image means the same.
        size: The side of the images that the model sees.
        mean: The mean of each channel of the training images in [0, 1].
        std: The standard deviation of each channel of the training images in [0, 1].
        validation_indices: The indices of the training images that were set aside; None if the data set comes with
            validation images.
        skipped: Images and folders that could not be read and were left out before training.
        notes: Lines for people about files that were not used as they may expect.
        digests: Digests of labels and order, by which a resumed run recognises its images. By default those of `train`
            and `validation`.
    """

    name: str
    classes: tuple[str, ...]
    train: Images
    validation: Images | None
    test: Images | None
    flip: bool
    size: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    validation_indices: Tensor | None
    skipped: tuple[SkippedImage, ...] = ()
    notes: tuple[str, ...] = ()
    digests: Mapping[str, str] | None = None

    def __post_init__(self) -> None:
        if self.digests is None:
            object.__setattr__(self, "digests", _digests(self.train, self.validation))

    def fingerprint(self) -> dict[str, object]:
        """Return a short description, different for different images."""
        return {
            "classes": list(self.classes),
            "train": len(self.train),
            "validation": 0 if self.validation is None else len(self.validation),
            "mean": list(self.mean),
            "std": list(self.std),
            **(self.digests or {}),
        }

    def on(self, device: torch.device, decode: bool = False) -> "Splits":
        """Return the splits with images in memory moved to a device, once for all batches.

        Args:
            device: The device of training.
            decode: Whether the device decodes images that are not in memory.
        """

        def moved(images: Images) -> Images:
            if isinstance(images, InMemoryImages):
                return images.on(device)
            return GpuDecodedImages(images, device) if decode and isinstance(images, LazyImages) else images

        validation, test = (None if images is None else moved(images) for images in (self.validation, self.test))
        return dataclasses.replace(self, train=moved(self.train), validation=validation, test=test)

    @property
    def in_memory(self) -> bool:
        """Whether all training images are decoded."""
        return isinstance(self.train, InMemoryImages)

    @property
    def channels(self) -> int:
        """The number of channels of the images."""
        return self.train.shape[0]


def dataset_name(config: DataConfig) -> str:
    """Return the name of the data set of a configuration.

    Raises:
        UserError: No data set has that name.
    """
    name = config.name or _default_data(config.root)
    if name == FROM_PYTHON:
        raise UserError("the images of this run are data sets that `madao.fit` was given; call it again with them")
    if name not in DATASETS:
        raise UserError(f"unknown data set {nearest(name, DATASETS)}")
    return name


def stored_size(config: DataConfig, size: int) -> int:
    """Return the side of stored squares from which the model sees `size` pixels."""
    return size if dataset_name(config) in _OWN_SIZE else round(size * _CANVAS)


def load_dataset(config: DataConfig) -> Dataset:
    """Load the data set that a configuration names.

    Raises:
        UserError: The data set is missing or damaged, or settings do not suit it.
    """
    name = dataset_name(config)
    if config.shift != "none" and name not in ("digits", "shapes"):
        raise UserError(f"`data.shift` goes with the data sets digits and shapes, got {name}; leave it out")
    if config.root is None and name in ("folder", "masks", "npz", "webdataset"):
        raise UserError(f"the data set {name} needs the path of its files, `data.root`")
    side = None if config.size is None else stored_size(config, config.size)
    try:
        return DATASETS[name](
            DatasetRequest(
                Path(config.root or "data"),
                config.download,
                side,
                config.on_error,
                config.shift,
                config.max_pixels,
            )
        )
    except DatasetNotFoundError as error:
        photos = config.root is not None and holds_classes(Path(config.root))
        hint = (
            f"; to train on the folders of images in {config.root} leave out `recipe` and `data.name`" if photos else ""
        )
        raise UserError(f"{error}{hint}") from None
    except DataError as error:
        raise UserError(str(error)) from None


def _default_data(root: str | None) -> str:
    if root is None:
        return "digits"
    by_ending = {".npz": "npz", ".tar": "webdataset"}.get(Path(root).suffix)
    try:
        return by_ending or ("masks" if is_mask_folder(Path(root)) else "folder")
    except OSError as error:
        raise UserError(f"cannot read {root} ({error.strerror or error}); check `data.root`") from None


def image_side(config: DataConfig) -> int:
    """Return the side of stored squares of images that have many sizes, in pixels."""
    return round((config.size or _FILE_SIZE) * _CANVAS)


def load_splits(config: DataConfig, dataset: Dataset | None = None) -> Splits:
    """Load the data set and set validation images aside.

    Args:
        config: The settings of the images.
        dataset: The data set. By default the one that the settings name.

    Raises:
        UserError: The data set is missing or damaged, or settings do not suit it.
    """
    dataset = load_dataset(config) if dataset is None else dataset
    try:
        train, validation, indices = set_aside(dataset, config)
        check_classes(train.targets, dataset.classes, "training")
        if validation is not None:
            check_classes(validation.targets, dataset.classes, "validation")
        digests = _digests(train, validation)  # the same whether the files are decoded now or later
        skipped = list(dataset.skipped)
        train = _in_memory(train, config, skipped, "training")
        validation, test = (
            None if images is None else _in_memory(images, config, skipped, split)
            for images, split in ((validation, "validation"), (dataset.test, "test"))
        )
        mean, std = mean_and_std(train, workers=config.processes if isinstance(train, LazyImages) else 0)
    except DataError as error:
        raise UserError(str(error)) from None
    stored = min(train.shape[1:])
    size = stored if dataset.name in _OWN_SIZE or dataset.whole else config.size or _FILE_SIZE
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
        skipped=tuple(skipped),
        notes=dataset.notes,
        digests=digests,
    )


def _digests(*images: Images | None) -> dict[str, str]:
    return {"labels": digest_labels(images), "order": digest_order(images)}


def set_aside(dataset: Dataset, config: DataConfig) -> tuple[Images, Images | None, Tensor | None]:
    """Return training images, validation images if any, and the indices of the images that were set aside."""
    used = _used(dataset, config)
    if dataset.validation is not None:
        if not config.val_fraction:
            raise UserError(
                f"the data set {dataset.name} comes with validation images, and `data.val_fraction=0` does not train "
                "on them; move them to the training images, or leave the setting out"
            )
        return dataset.train if config.max_images is None else dataset.train.subset(used), dataset.validation, None
    if not config.val_fraction:
        return dataset.train.subset(used), None, None
    kept, aside = stratified(dataset.train.labels[used], config.val_fraction, config.split_seed, dataset.classes)
    return dataset.train.subset(used[kept]), dataset.train.subset(used[aside]), used[aside]


def _used(dataset: Dataset, config: DataConfig) -> Tensor:
    """Return the indices of the training images that `data.max_images` leaves."""
    count = len(dataset.train)
    if config.max_images is None or config.max_images >= count:
        return torch.arange(count)
    least = 2 if dataset.validation is None and config.val_fraction else 1  # one of two is set aside
    enough = int(dataset.train.labels.bincount().clamp(max=least).sum())
    if config.max_images < enough:
        raise UserError(f"`data.max_images` must be at least {enough}, {least} of each class, got {config.max_images}")
    return stratified_subset(dataset.train.labels, config.max_images, config.split_seed, least)


def _in_memory(images: Images, config: DataConfig, skipped: list[SkippedImage], split: str) -> Images:
    """Return the images of a split, decoded if they fit into memory, and add the unreadable ones to `skipped`.

    Raises:
        DataError: There is no image, or none can be read. A run would notice it only when it needs the split.
    """
    channels, height, width = images.shape
    if isinstance(images, LazyImages):
        if len(images) * channels * height * width <= config.cache_gib * 2**30:
            images, lost = images.decode_all(config.processes)
            skipped += lost
            readable = len(images) > 0
        else:
            count = min(len(images), _PROBED)
            readable = len(images.load([i * len(images) // count for i in range(count)])[1]) > 0
        if not readable:
            raise DataError(f"none of the {split} images could be read; check `data.root`")
    if not len(images):
        raise DataError(f"there are no {split} images; add some, or remove the empty split")
    return images


def describe_skipped(skipped: Collection[SkippedImage]) -> str:
    """Return a line about images that were left out, with the first of them."""
    first = min(skipped)
    return (
        f"skipped {counted(len(skipped), 'image')} that could not be read, such as {first.name} ({first.reason}); "
        f"{SKIPPED_FILE} lists all"
    )


def on_device(splits: Splits, config: DataConfig, device: torch.device) -> tuple[Splits, list[str]]:
    """Move images to the device of training; return them, and lines for people about images that are missing."""
    notes = [*splits.notes, *([describe_skipped(splits.skipped)] if splits.skipped else [])]
    lacking = None if splits.test is None else missing_classes(splits.test.targets, splits.classes, "test")
    if lacking is not None:
        notes.append(f"{lacking}: the test error will say nothing about them")
    if config.decode == "workers" or splits.in_memory:
        return splits.on(device), notes
    reason = gpu_decode_error(device)
    if reason is not None:
        notes.append(f"`data.decode=gpu`: {reason}, so worker processes decode the images")
    return splits.on(device, decode=reason is None), notes
