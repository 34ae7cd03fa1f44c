"""Public data sets, where and as torchvision keeps them on disk."""

import http.client
import pickle
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import torch

from madao.data.dataset import Dataset, DatasetRequest
from madao.data.files import ImageFiles
from madao.data.images import InMemoryImages
from madao.errors import DataError, DatasetNotFoundError

# What torchvision lets through when files are missing, incomplete or cannot be fetched; URLError is an OSError.
_FAILURES = (
    RuntimeError,
    OSError,
    ValueError,
    LookupError,
    EOFError,
    http.client.HTTPException,
    tarfile.TarError,
    pickle.UnpicklingError,
)


def cifar10(source: DatasetRequest) -> Dataset:
    """Ten classes of 32 × 32 photographs."""
    return _cifar("cifar10", "CIFAR10", source)


def cifar100(source: DatasetRequest) -> Dataset:
    """A hundred classes of 32 × 32 photographs."""
    return _cifar("cifar100", "CIFAR100", source)


def svhn(source: DatasetRequest) -> Dataset:
    """House numbers, 32 × 32, without the extra images."""
    train, test = (_open("svhn", "SVHN", source, split=split) for split in ("train", "test"))
    return Dataset(
        name="svhn",
        classes=tuple("0123456789"),
        train=_pixels(train.data, train.labels, source),
        validation=None,
        test=_pixels(test.data, test.labels, source),
        flip=False,
    )


def imagenet(source: DatasetRequest) -> Dataset:
    """A thousand classes; the official validation images are the test split."""
    archives = "ILSVRC2012_devkit_t12.tar.gz, ILSVRC2012_img_train.tar and ILSVRC2012_img_val.tar of image-net.org"
    return _files("imagenet", "ImageNet", source, train=("train",), test="val", by_hand=archives)


def flowers102(source: DatasetRequest) -> Dataset:
    """102 kinds of flowers; the official training and validation images together are the training split."""
    return _files("flowers102", "Flowers102", source, train=("train", "val"), test="test")


def oxford_pets(source: DatasetRequest) -> Dataset:
    """37 breeds of cats and dogs."""
    return _files("oxford-pets", "OxfordIIITPet", source, train=("trainval",), test="test")


def fgvc_aircraft(source: DatasetRequest) -> Dataset:
    """Aircraft in 70 families."""
    return _files("fgvc-aircraft", "FGVCAircraft", source, train=("trainval",), test="test", annotation_level="family")


def stanford_cars(source: DatasetRequest) -> Dataset:
    """196 models of cars."""
    parts = (
        "stanford_cars/ with cars_train/, cars_test/, cars_test_annos_withlabels.mat and devkit/, which holds "
        "cars_meta.mat and cars_train_annos.mat,"
    )
    return _files("stanford-cars", "StanfordCars", source, train=("train",), test="test", by_hand=parts)


def _cifar(name: str, kind: str, source: DatasetRequest) -> Dataset:
    train, test = (_open(name, kind, source, train=train) for train in (True, False))
    return Dataset(
        name=name,
        classes=tuple(train.classes),
        train=_pixels(train.data.transpose(0, 3, 1, 2), train.targets, source),
        validation=None,
        test=_pixels(test.data.transpose(0, 3, 1, 2), test.targets, source),
        flip=True,
    )


def _files(
    name: str,
    kind: str,
    source: DatasetRequest,
    train: tuple[str, ...],
    test: str,
    by_hand: str | None = None,
    **options: str,
) -> Dataset:
    """Splits of which torchvision only says what lies where.

    Args:
        name: On the command line.
        kind: The class of torchvision.
        source: How it was asked for.
        train: torchvision's splits that make up the training split.
        test: torchvision's split that is the test split.
        by_hand: What has to be put into the root, where torchvision cannot download.
        options: For the class of torchvision.
    """
    parts = [_open(name, kind, source, by_hand, split=split, **options) for split in (*train, test)]
    if len({tuple(getattr(part, "wnids", ())) for part in parts}) > 1:  # ImageNet's labels count the folders it finds
        raise DataError(f"train and {test} in {source.root} have different class folders; extract the archives again")
    # ImageNet gives each class a tuple of synonyms.
    classes = tuple(str(entry if isinstance(entry, str) else entry[0]) for entry in parts[0].classes)

    def files(parts: list[Any]) -> ImageFiles:
        samples = [sample for part in parts for sample in _listed(part)]
        labels = torch.tensor([label for _, label in samples], dtype=torch.int64)
        return ImageFiles([path for path, _ in samples], labels, source.side or 256, source.on_error)

    return Dataset(name, classes, train=files(parts[:-1]), validation=None, test=files(parts[-1:]), flip=True)


def _listed(part: Any) -> list[tuple[Path, int]]:
    """Files and labels, which torchvision's classes keep under four different names."""
    samples = getattr(part, "samples", None) or getattr(part, "_samples", None)
    if samples is None:
        files = getattr(part, "_image_files", None) or part._images
        samples = zip(files, part._labels, strict=True)
    return [(Path(path), int(label)) for path, label in samples]


def _pixels(images: Any, labels: Any, source: DatasetRequest) -> InMemoryImages:
    pixels = torch.from_numpy(np.ascontiguousarray(images))
    return InMemoryImages(pixels, torch.as_tensor(labels, dtype=torch.int64)).resized(source.side)


def _open(name: str, kind: str, source: DatasetRequest, by_hand: str | None = None, **options: Any) -> Any:
    """One of torchvision's data sets, its errors in our words."""
    try:
        from torchvision import datasets

        download = {} if by_hand else {"download": source.download}
        return getattr(datasets, kind)(source.root, **options, **download)
    except ImportError as error:
        raise DataError(f"{name} needs the package {error.name}: pip install {error.name}") from None
    except _FAILURES as error:
        # "Dataset not found. You can use download=True" is for torchvision's callers; an OSError names the file.
        reason = "" if isinstance(error, RuntimeError) else f" ({' '.join(str(error).split())})"
        if by_hand:
            remedy = f"torchvision cannot download it: put {by_hand} there"
        elif not source.download:
            remedy = "--data.download true fetches it"
        else:
            remedy = "downloading it failed: check the network, remove what came of it and try again"
        raise DatasetNotFoundError(f"found no complete {name} in {source.root}{reason}; {remedy}") from None
