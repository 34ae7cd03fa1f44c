"""Tasks: what is learned from images and targets, and how it is measured. One a file."""

from madao.tasks.base import Draws, EvalResult, Metric, Task
from madao.tasks.classification import Classification
from madao.tasks.knn import KNN
from madao.tasks.moco import MoCo
from madao.tasks.segmentation import Segmentation

__all__ = ["KNN", "Classification", "Draws", "EvalResult", "Metric", "MoCo", "Segmentation", "Task"]
