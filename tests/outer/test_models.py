"""Outer steps of small models of each kind that users have."""

from collections.abc import Callable
from typing import Any

import pytest
import timm
import torch
from torch import Tensor, nn
from torchvision.models.convnext import CNBlockConfig, ConvNeXt
from torchvision.models.vision_transformer import VisionTransformer
from torchvision.ops import StochasticDepth

from madao import Policy
from madao.hypergrad import DoubleBackward, Neumann, Relaxed
from madao.hypergrad.autodiff.fallback import Fallback
from madao.hypergrad.autodiff.products import SecondOrder
from madao.models import build
from madao.outer import ComputeOptions, PolicyOptimizer

_GENERATOR = torch.Generator().manual_seed(0)
IMAGES = torch.rand(6, 3, 32, 32, generator=_GENERATOR, dtype=torch.float64)
LABELS = torch.tensor([0, 1, 2, 0, 1, 2])


def vision_transformer() -> nn.Module:
    model: nn.Module = VisionTransformer(
        32, 8, num_layers=2, num_heads=2, hidden_dim=16, mlp_dim=32, dropout=0.1, num_classes=3
    )
    nn.init.normal_(
        model.get_parameter("heads.head.weight"), generator=torch.Generator().manual_seed(1)
    )  # torchvision starts at zero
    return model


def convnext() -> nn.Module:
    blocks = [CNBlockConfig(8, 16, 1), CNBlockConfig(16, None, 1)]
    model: nn.Module = ConvNeXt(blocks, stochastic_depth_prob=0.5, num_classes=3)
    return model


def frozen() -> nn.Module:
    model = convnext()
    model.get_submodule("features.0").requires_grad_(False)
    return model


def random_layers() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, stride=2),
        nn.BatchNorm2d(8),
        nn.Hardswish(),
        StochasticDepth(0.4, "row"),
        nn.Dropout2d(0.3),
        nn.AdaptiveAvgPool2d(4),
        nn.Flatten(),
        nn.Dropout(0.3),
        nn.Linear(128, 3),
    )


MODELS: dict[str, Callable[[], nn.Module]] = {
    "Vision Transformer": vision_transformer,
    "Vision Transformer of timm": lambda: timm.create_model("test_vit", num_classes=3, img_size=32),
    "ConvNeXt with stochastic depth": convnext,
    "ConvNeXt of timm": lambda: timm.create_model("test_convnext", num_classes=3, drop_path_rate=0.3),
    "frozen parameters": frozen,
    "dropout and stochastic depth": random_layers,
    "MobileNetV3": lambda: timm.create_model("mobilenetv3_small_050", num_classes=3),
}

SETTINGS: dict[str, dict[str, Any]] = {
    "default": {},
    "paper": {"estimator": Relaxed(), "solver": Neumann(steps=1, scale=1e-4)},
}


def gradient(name: str, settings: str, hvp: SecondOrder, mode: Any) -> tuple[Tensor, ...]:
    torch.manual_seed(0)
    model = MODELS[name]().double()
    compute = ComputeOptions(hvp=hvp, inner_mode=mode, pathwise_batch=3)
    outer = PolicyOptimizer(Policy().double(), model, compute=compute, **SETTINGS[settings])
    return outer.gradient((IMAGES, LABELS), (IMAGES.flip(0), LABELS.flip(0)))[0]


@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("mode", ["eval", "train"])
@pytest.mark.parametrize("name", MODELS)
def test_forward_mode_and_double_backward_agree(name: str, mode: str, settings: str) -> None:
    hvp = Fallback(pytest.fail)
    found = gradient(name, settings, hvp, mode)
    torch.testing.assert_close(found, gradient(name, settings, DoubleBackward(), mode), rtol=1e-6, atol=1e-12)
    assert any(part.count_nonzero() for part in found)


def test_frozen_parameters_are_constants() -> None:
    model = frozen()
    outer = PolicyOptimizer(Policy(), model, every=1)
    before = {name: parameter.clone() for name, parameter in model.named_parameters()}
    step = outer.step((IMAGES.float(), LABELS), (IMAGES.float(), LABELS))
    assert step is not None
    assert step.applied
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter, before[name]), name
        assert parameter.grad is None


class SeveralOutputs(nn.Module):
    """A model that returns more than logits in training, as Inception does."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 4, 3, stride=2), nn.GELU(), nn.AdaptiveAvgPool2d(2), nn.Flatten())
        self.head, self.auxiliary = nn.Linear(16, 3), nn.Linear(16, 3)

    def forward(self, images: Tensor) -> dict[str, Tensor]:
        features = self.body(images)
        return {"logits": self.head(features), "auxiliary": self.auxiliary(features)}


def test_a_loss_may_take_several_outputs() -> None:
    def losses(outputs: dict[str, Tensor], targets: Tensor) -> Tensor:
        parts = [nn.functional.cross_entropy(output, targets, reduction="none") for output in outputs.values()]
        return parts[0] + 0.4 * parts[1]

    outer = PolicyOptimizer(Policy(), SeveralOutputs(), losses, every=1)
    step = outer.step((IMAGES.float(), LABELS), (IMAGES.float(), LABELS))
    assert step is not None
    assert step.applied


def test_images_that_are_too_small_are_refused_with_a_remedy() -> None:
    with pytest.raises(ValueError, match=r"`data\.size`"):
        build("timm/inception_v3", 3, 3, 32)
