"""Models: our own for small images, and those of torchvision and timm, by name."""

from madao.models.check import check_head
from madao.models.errors import ModelError, UnknownModel
from madao.models.named import build, known
from madao.models.small_cnn import SmallCNN
from madao.models.wide_resnet import WideResNet

__all__ = ["ModelError", "SmallCNN", "UnknownModel", "WideResNet", "build", "check_head", "known"]
