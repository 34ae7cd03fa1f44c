"""Data sets by name."""

from collections.abc import Callable

from madao.data.dataset import Dataset, DatasetRequest
from madao.data.datasets.digits import digits
from madao.data.datasets.folder import folder
from madao.data.datasets.masks import masks
from madao.data.datasets.npz import npz
from madao.data.datasets.shapes import shapes
from madao.data.datasets.torchvision_sets import (
    cifar10,
    cifar100,
    fgvc_aircraft,
    flowers102,
    imagenet,
    oxford_pets,
    stanford_cars,
    svhn,
)
from madao.data.datasets.webdataset import webdataset

DATASETS: dict[str, Callable[[DatasetRequest], Dataset]] = {
    "cifar10": cifar10,
    "cifar100": cifar100,
    "svhn": svhn,
    "imagenet": imagenet,
    "flowers102": flowers102,
    "oxford-pets": oxford_pets,
    "fgvc-aircraft": fgvc_aircraft,
    "stanford-cars": stanford_cars,
    "folder": folder,
    "webdataset": webdataset,
    "npz": npz,
    "digits": digits,
    "masks": masks,
    "shapes": shapes,
}
