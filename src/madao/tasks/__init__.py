"""Tasks: what is learned from images and targets, and how it is measured. One a file."""

from madao.tasks.base import Draws, Measure, Score, Task
from madao.tasks.classification import Classification
from madao.tasks.knn import Neighbours
from madao.tasks.moco import MoCo
from madao.tasks.segmentation import Segmentation

__all__ = ["Classification", "Draws", "Measure", "MoCo", "Neighbours", "Score", "Segmentation", "Task"]
