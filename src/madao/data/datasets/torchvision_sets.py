"""Public data sets in the folders and formats of torchvision."""

import http.client
import pickle
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import torch

from madao.data.dataset import Dataset, DatasetRequest
from madao.data.image_files import ImageFiles
from madao.data.in_memory_images import InMemoryImages
from madao.errors import DataError, DatasetNotFoundError

# Errors that torchvision raises if files are missing, incomplete or cannot be downloaded. URLError is an OSError.
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


def cifar10(request: DatasetRequest) -> Dataset:
    """Return CIFAR-10: ten classes of 32 × 32 photographs."""
    return _cifar("cifar10", "CIFAR10", request)


def cifar100(request: DatasetRequest) -> Dataset:
    """Return CIFAR-100: a hundred classes of 32 × 32 photographs."""
    return _cifar("cifar100", "CIFAR100", request)


def svhn(request: DatasetRequest) -> Dataset:
    """Return SVHN: house numbers, 32 × 32, without the extra images."""
    train, test = (_open("svhn", "SVHN", request, split=split) for split in ("train", "test"))
    return Dataset(
        name="svhn",
        classes=tuple("0123456789"),
        train=_pixels(train.data, train.labels, request),
        validation=None,
        test=_pixels(test.data, test.labels, request),
        flip=False,
    )


def imagenet(request: DatasetRequest) -> Dataset:
    """Return ImageNet: a thousand classes. Its official validation images are the test split."""
    archives = "ILSVRC2012_devkit_t12.tar.gz, ILSVRC2012_img_train.tar and ILSVRC2012_img_val.tar of image-net.org"
    return _files("imagenet", "ImageNet", request, train=("train",), test="val", by_hand=archives)


def flowers102(request: DatasetRequest) -> Dataset:
    """Return 102 kinds of flowers. The official training and validation images together are the training split."""
    return _files("flowers102", "Flowers102", request, train=("train", "val"), test="test")


def oxford_pets(request: DatasetRequest) -> Dataset:
    """Return 37 breeds of cats and dogs."""
    return _files("oxford-pets", "OxfordIIITPet", request, train=("trainval",), test="test")


def fgvc_aircraft(request: DatasetRequest) -> Dataset:
    """Return aircraft in 70 families."""
    return _files("fgvc-aircraft", "FGVCAircraft", request, train=("trainval",), test="test", annotation_level="family")


def stanford_cars(request: DatasetRequest) -> Dataset:
    """Return 196 models of cars."""
    parts = (
        "stanford_cars/ with cars_train/, cars_test/, cars_test_annos_withlabels.mat and devkit/, which holds "
        "cars_meta.mat and cars_train_annos.mat,"
    )
    return _files("stanford-cars", "StanfordCars", request, train=("train",), test="test", by_hand=parts)


def _cifar(name: str, kind: str, request: DatasetRequest) -> Dataset:
    train, test = (_open(name, kind, request, train=train) for train in (True, False))
    return Dataset(
        name=name,
        classes=tuple(train.classes),
        train=_pixels(train.data.transpose(0, 3, 1, 2), train.targets, request),
        validation=None,
        test=_pixels(test.data.transpose(0, 3, 1, 2), test.targets, request),
        flip=True,
    )


def _files(
    name: str,
    kind: str,
    request: DatasetRequest,
    train: tuple[str, ...],
    test: str,
    by_hand: str | None = None,
    **options: str,
) -> Dataset:
    """Return a data set whose images torchvision keeps in files.

    Args:
        name: Name of the data set in configurations.
        kind: Name of torchvision's class.
        request: The request for the data set.
        train: torchvision's splits that make up the training split.
        test: torchvision's split that is the test split.
        by_hand: Files that users have to put into the root, if torchvision cannot download them.
        options: Arguments of torchvision's class.
    """
    parts = [_open(name, kind, request, by_hand, split=split, **options) for split in (*train, test)]
    if len({tuple(getattr(part, "wnids", ())) for part in parts}) > 1:  # ImageNet numbers the folders it finds
        raise DataError(f"train and {test} in {request.root} have different class folders; extract the archives again")
    # In ImageNet each class is a tuple of synonyms.
    classes = tuple(str(entry if isinstance(entry, str) else entry[0]) for entry in parts[0].classes)

    def files(parts: list[Any]) -> ImageFiles:
        samples = [sample for part in parts for sample in _listed(part)]
        labels = torch.tensor([label for _, label in samples], dtype=torch.int64)
        return ImageFiles(
            [path for path, _ in samples], labels, request.side or 256, request.on_error, request.max_pixels
        )

    return Dataset(name, classes, train=files(parts[:-1]), validation=None, test=files(parts[-1:]), flip=True)


def _listed(part: Any) -> list[tuple[Path, int]]:
    """Return files and labels. torchvision keeps them under four different names."""
    samples = getattr(part, "samples", None) or getattr(part, "_samples", None)
    if samples is None:
        files = getattr(part, "_image_files", None) or part._images
        samples = zip(files, part._labels, strict=True)
    return [(Path(path), int(label)) for path, label in samples]


def _pixels(images: Any, labels: Any, request: DatasetRequest) -> InMemoryImages:
    pixels = torch.from_numpy(np.ascontiguousarray(images))
    return InMemoryImages(pixels, torch.as_tensor(labels, dtype=torch.int64)).resized(request.side)


def _open(name: str, kind: str, request: DatasetRequest, by_hand: str | None = None, **options: Any) -> Any:
    """Open a data set of torchvision. Its errors become DataErrors that name the remedy."""
    try:
        from torchvision import datasets

        download = {} if by_hand else {"download": request.download}
        return getattr(datasets, kind)(request.root, **options, **download)
    except ImportError as error:
        raise DataError(f"{name} needs the package {error.name}: pip install {error.name}") from None
    except _FAILURES as error:
        # A RuntimeError says "use download=True", for callers of torchvision. Other errors name a file.
        reason = "" if isinstance(error, RuntimeError) else f" ({' '.join(str(error).split())})"
        if by_hand:
            remedy = f"torchvision cannot download it: put {by_hand} there"
        elif not request.download:
            remedy = "download it with `data.download=true`"
        else:
            remedy = "the download failed: check the network, remove incomplete files and try again"
        raise DatasetNotFoundError(f"found no complete {name} in {request.root}{reason}; {remedy}") from None
