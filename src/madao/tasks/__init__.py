"""Tasks: what is learned from images and targets, and how it is measured. One a file."""

from madao.tasks.base import Draws, Measure, Score, Task
from madao.tasks.classification import Classification

__all__ = ["Classification", "Draws", "Measure", "Score", "Task"]
