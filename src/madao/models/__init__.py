"""Models by name: madao's own for small images, and those of torchvision and timm."""

from madao.errors import ModelError, UnknownModelError
from madao.models.encoder import Encoder, build_encoder
from madao.models.probe import check_head
from madao.models.registry import build, known
from madao.models.segmentation import build_dense, known_dense
from madao.models.small_cnn import SmallCNN
from madao.models.small_fcn import SmallFCN
from madao.models.wide_resnet import WideResNet

__all__ = [
    "Encoder",
    "ModelError",
    "SmallCNN",
    "SmallFCN",
    "UnknownModelError",
    "WideResNet",
    "build",
    "build_dense",
    "build_encoder",
    "check_head",
    "known",
    "known_dense",
]
