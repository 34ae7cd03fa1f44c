"""Trained models in use: load them, predict files, and write them for programs without madao."""

from madao.inference.image_model import ImageModel
from madao.inference.load import load_model
from madao.inference.preprocessing import Preprocessing

__all__ = ["ImageModel", "Preprocessing", "load_model"]
