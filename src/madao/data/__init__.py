"""Data sets: labelled images of one size, their splits, and batches of them."""

from madao.data.batches import Batches
from madao.data.dataset import Dataset, Source
from madao.data.encoded import Encoded
from madao.data.files import Files
from madao.data.gpu_decode import OnDevice
from madao.data.images import Images, Pixels
from madao.data.registry import DATASETS
from madao.data.shards import Shards
from madao.data.split import check_classes, share, stratified
from madao.data.statistics import mean_and_std
from madao.errors import DataError

__all__ = [
    "DATASETS",
    "Batches",
    "DataError",
    "Dataset",
    "Encoded",
    "Files",
    "Images",
    "OnDevice",
    "Pixels",
    "Shards",
    "Source",
    "check_classes",
    "mean_and_std",
    "share",
    "stratified",
]
