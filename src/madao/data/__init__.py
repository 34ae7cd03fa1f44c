"""Data sets: labelled images of one size, their splits and their batches."""

from madao.data.batches import Batches
from madao.data.dataset import Dataset, DatasetRequest
from madao.data.datasets.registry import DATASETS
from madao.data.gpu_decode import GpuDecodedImages
from madao.data.image_files import ImageFiles
from madao.data.images import Images
from madao.data.in_memory_images import InMemoryImages
from madao.data.lazy_images import LazyImages
from madao.data.shards import Shards
from madao.data.split import check_classes, stratified, stratified_subset
from madao.data.statistics import mean_and_std
from madao.errors import DataError

__all__ = [
    "DATASETS",
    "Batches",
    "DataError",
    "Dataset",
    "DatasetRequest",
    "GpuDecodedImages",
    "ImageFiles",
    "Images",
    "InMemoryImages",
    "LazyImages",
    "Shards",
    "check_classes",
    "mean_and_std",
    "stratified",
    "stratified_subset",
]
