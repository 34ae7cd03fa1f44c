"""Data sets by name."""

from collections.abc import Callable

from madao.data.dataset import Dataset, DatasetRequest
from madao.data.digits import digits
from madao.data.folder import folder
from madao.data.masks import masks
from madao.data.npz import npz
from madao.data.shapes import shapes
from madao.data.torchvision_sets import (
    cifar10,
    cifar100,
    fgvc_aircraft,
    flowers102,
    imagenet,
    oxford_pets,
    stanford_cars,
    svhn,
)
from madao.data.webdataset import webdataset

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
