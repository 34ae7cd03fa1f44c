"""Tasks, one per file: losses, targets under augmentation, and metrics."""

from madao.tasks.base import Draws, EvalResult, Metric, Task
from madao.tasks.classification import Classification
from madao.tasks.knn import KNN
from madao.tasks.moco import MoCo
from madao.tasks.segmentation import Segmentation

__all__ = ["KNN", "Classification", "Draws", "EvalResult", "Metric", "MoCo", "Segmentation", "Task"]
